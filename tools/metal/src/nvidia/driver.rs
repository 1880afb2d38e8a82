//! The NVIDIA driver, opened when it is first wanted: the few of its calls that running a kernel takes.

use std::ffi::{CStr, c_char, c_int, c_uint, c_void};
use std::ptr::{NonNull, null, null_mut};
use std::sync::OnceLock;

/// The driver's pointers to what it owns.
type Handle = *mut c_void;

macro_rules! calls {
    ($($name:ident = $symbol:literal ($($parameter:ty),*);)+) => {
        struct Calls { $($name: unsafe extern "C" fn($($parameter),*) -> c_int),+ }

        impl Calls {
            fn of(library: &libloading::Library) -> Result<Self, libloading::Error> {
                // SAFETY: the driver's header declares these functions so.
                unsafe { Ok(Self { $($name: *library.get(concat!($symbol, "\0").as_bytes())?),+ }) }
            }
        }
    };
}

calls! {
    init = "cuInit" (c_uint);
    device = "cuDeviceGet" (*mut c_int, c_int);
    device_name = "cuDeviceGetName" (*mut c_char, c_int, c_int);
    retain_context = "cuDevicePrimaryCtxRetain" (*mut Handle, c_int);
    set_context = "cuCtxSetCurrent" (Handle);
    synchronize = "cuCtxSynchronize" ();
    allocate = "cuMemHostAlloc" (*mut Handle, usize, c_uint);
    free = "cuMemFreeHost" (Handle);
    load = "cuModuleLoadData" (*mut Handle, *const c_void);
    unload = "cuModuleUnload" (Handle);
    function = "cuModuleGetFunction" (*mut Handle, Handle, *const c_char);
    global = "cuModuleGetGlobal_v2" (*mut u64, *mut usize, Handle, *const c_char);
    to_device = "cuMemcpyHtoD_v2" (u64, *const c_void, usize);
    launch = "cuLaunchKernel" (
        Handle, c_uint, c_uint, c_uint, c_uint, c_uint, c_uint, c_uint, Handle, *mut Handle, *mut Handle
    );
    error_name = "cuGetErrorName" (c_int, *mut *const c_char);
}

/// `CU_MEMHOSTALLOC_PORTABLE | CU_MEMHOSTALLOC_DEVICEMAP`. The card then uses the host's own addresses.
const SHARED: c_uint = 1 | 2;

/// Bytes of the scratch memory: what `setBytes` may bind, for each index.
const SCRATCH: usize = 31 * 4096;

/// The first card.
pub struct Driver {
    calls: Calls,
    context: Handle,
    /// Its name.
    pub name: String,
    scratch: OnceLock<Result<Scratch, String>>,
    /// Where the calls are.
    _library: libloading::Library,
}

struct Scratch(NonNull<u8>);

// SAFETY: an address; `Kernels::launch` uses it under its lock.
unsafe impl Send for Scratch {}
// SAFETY: as above.
unsafe impl Sync for Scratch {}

// SAFETY: the driver's calls may be made from any thread, and the context is a name for them.
unsafe impl Send for Driver {}
// SAFETY: as above.
unsafe impl Sync for Driver {}

/// Loaded code.
pub struct Module(Handle);

// SAFETY: a name, for calls that may be made from any thread.
unsafe impl Send for Module {}
// SAFETY: as above.
unsafe impl Sync for Module {}

impl Driver {
    /// The driver of this process.
    pub fn get() -> Result<&'static Self, String> {
        static DRIVER: OnceLock<Result<Driver, String>> = OnceLock::new();
        DRIVER.get_or_init(Self::open).as_ref().map_err(Clone::clone)
    }

    fn open() -> Result<Self, String> {
        // SAFETY: the driver's library does what it likes when it is loaded, and is trusted.
        let library = unsafe { libloading::Library::new("libcuda.so.1") }.map_err(|e| e.to_string())?;
        let calls = Calls::of(&library).map_err(|e| e.to_string())?;
        let (mut device, mut context, mut name) = (0, null_mut(), [0; 128]);
        // SAFETY: in the order that the driver asks for; each pointer is to a value of the call's type, and the name has
        // so many bytes and ends.
        let name = unsafe {
            calls.check("cuInit", (calls.init)(0))?;
            calls.check("cuDeviceGet", (calls.device)(&raw mut device, 0))?;
            calls.check("cuDeviceGetName", (calls.device_name)(name.as_mut_ptr(), name.len() as c_int, device))?;
            calls.check("cuDevicePrimaryCtxRetain", (calls.retain_context)(&raw mut context, device))?;
            CStr::from_ptr(name.as_ptr()).to_string_lossy().into_owned()
        };
        Ok(Self { calls, context, name, scratch: OnceLock::new(), _library: library })
    }

    /// The calls, after the context was made this thread's.
    fn calls(&self) -> Result<&Calls, String> {
        // SAFETY: the context lives as long as the process.
        self.calls.check("cuCtxSetCurrent", unsafe { (self.calls.set_context)(self.context) })?;
        Ok(&self.calls)
    }

    /// Zeroes that host and card use at one address.
    pub fn allocate(&self, bytes: usize) -> Result<NonNull<u8>, String> {
        let calls = self.calls()?;
        let mut start = null_mut();
        // SAFETY: `start` is where the address goes.
        calls.check("cuMemHostAlloc", unsafe { (calls.allocate)(&raw mut start, bytes, SHARED) })?;
        let start = NonNull::new(start.cast::<u8>()).ok_or("cuMemHostAlloc gave no memory")?;
        // SAFETY: there are so many bytes, and nobody else knows them.
        unsafe { start.as_ptr().write_bytes(0, bytes) };
        Ok(start)
    }

    /// # Safety
    /// `start` is from `allocate`, and nobody uses it any more.
    pub unsafe fn free(&self, start: NonNull<u8>) {
        if let Ok(calls) = self.calls() {
            // SAFETY: the caller's. What cannot be freed is lost, and nothing else.
            let _ = unsafe { (calls.free)(start.as_ptr().cast()) };
        }
    }

    /// Memory for the bytes that one launch copies.
    pub fn scratch(&self) -> Result<NonNull<u8>, String> {
        let scratch = self.scratch.get_or_init(|| self.allocate(SCRATCH).map(Scratch));
        scratch.as_ref().map(|scratch| scratch.0).map_err(Clone::clone)
    }

    /// Loads machine code.
    pub fn load(&self, code: &[u8]) -> Result<Module, String> {
        let calls = self.calls()?;
        let mut module = null_mut();
        // SAFETY: a whole file that nvcc wrote, whose length is in it.
        calls.check("cuModuleLoadData", unsafe { (calls.load)(&raw mut module, code.as_ptr().cast()) })?;
        Ok(Module(module))
    }

    /// Unloads it; no kernel of it runs.
    pub fn unload(&self, module: &Module) {
        if let Ok(calls) = self.calls() {
            // SAFETY: each launch has ended when it returns. What cannot be unloaded is lost, and nothing else.
            let _ = unsafe { (calls.unload)(module.0) };
        }
    }

    /// A kernel.
    pub fn function(&self, module: &Module, name: &CStr) -> Result<Function, String> {
        let calls = self.calls()?;
        let mut function = null_mut();
        // SAFETY: a loaded module and a string that ends.
        let code = unsafe { (calls.function)(&raw mut function, module.0, name.as_ptr()) };
        calls.check("cuModuleGetFunction", code)?;
        Ok(Function(function))
    }

    /// Sets a variable of the code.
    pub fn set_global(&self, module: &Module, name: &CStr, value: &[u8]) -> Result<(), String> {
        let calls = self.calls()?;
        let (mut at, mut bytes) = (0, 0);
        // SAFETY: a loaded module and a string that ends.
        let code = unsafe { (calls.global)(&raw mut at, &raw mut bytes, module.0, name.as_ptr()) };
        calls.check("cuModuleGetGlobal", code)?;
        if bytes != value.len() {
            return Err(format!("{} has {bytes} bytes, not {}", name.to_string_lossy(), value.len()));
        }
        // SAFETY: the variable has so many bytes, and so has the value.
        calls.check("cuMemcpyHtoD", unsafe { (calls.to_device)(at, value.as_ptr().cast(), bytes) })
    }

    /// Runs a kernel to its end: `sizes` are threadgroups and the threads of each.
    ///
    /// # Safety
    /// `arguments` points to what the kernel takes, and the card can use what that points to.
    pub unsafe fn launch(
        &self,
        function: Function,
        sizes: ([u32; 3], [u32; 3]),
        shared: u32,
        arguments: Handle,
    ) -> Result<(), String> {
        let calls = self.calls()?;
        let ([x, y, z], [width, height, depth]) = sizes;
        let mut parameters = [arguments];
        let (stream, extra) = (null_mut(), null_mut());
        // SAFETY: one parameter, by the caller's promise of the kernel's type.
        let code = unsafe {
            (calls.launch)(function.0, x, y, z, width, height, depth, shared, stream, parameters.as_mut_ptr(), extra)
        };
        calls.check("cuLaunchKernel", code)?;
        // SAFETY: asks nothing.
        calls.check("cuCtxSynchronize", unsafe { (calls.synchronize)() })
    }
}

/// A kernel of a module that is loaded.
#[derive(Clone, Copy)]
pub struct Function(Handle);

impl Calls {
    fn check(&self, what: &str, code: c_int) -> Result<(), String> {
        if code == 0 {
            return Ok(());
        }
        let mut name = null();
        // SAFETY: the driver's names are strings that end and live for ever; one that it does not know stays null.
        let name = unsafe {
            (self.error_name)(code, &raw mut name);
            if name.is_null() { "unknown".into() } else { CStr::from_ptr(name).to_string_lossy() }
        };
        Err(format!("{what} says {name} ({code})"))
    }
}
