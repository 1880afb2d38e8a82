//! The names of objc2, objc2-foundation and objc2-metal that Lily's host uses, over the executor. Encoders record;
//! `commit` runs what they recorded and keeps what went wrong as the command buffer's error.
//! Only what is here exists: a host that wants more does not compile on Linux, and then more is written here.
#![allow(non_snake_case, non_upper_case_globals, clippy::missing_safety_doc, reason = "the names are Apple's")]

use std::ffi::c_void;
use std::fmt;
use std::marker::PhantomData;
use std::ptr::NonNull;
use std::sync::atomic::Ordering;
use std::sync::{Arc, Mutex, PoisonError};

use crate::commands::{Bound, Command, Commands, Memory, Pipeline};
use crate::library::Library;
use crate::mode::mode;

/// A counted reference.
pub struct Retained<T>(Arc<T>);

impl<T> Retained<T> {
    fn new(value: T) -> Self {
        Self(Arc::new(value))
    }
}
impl<T> Clone for Retained<T> {
    fn clone(&self) -> Self {
        Self(Arc::clone(&self.0))
    }
}
impl<T> std::ops::Deref for Retained<T> {
    type Target = T;
    fn deref(&self) -> &T {
        &self.0
    }
}

impl<T: fmt::Display> fmt::Display for Retained<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        (**self).fmt(f)
    }
}

/// An object of a protocol.
pub struct ProtocolObject<P: ?Sized>(Object, PhantomData<fn(&P)>);

enum Object {
    Device,
    Queue,
    Library(Arc<Library>),
    Function(Pipeline),
    Pipeline(Pipeline),
    Buffer(Arc<Memory>),
    Commands(Arc<Mutex<Commands>>),
    Encoder(Arc<Mutex<Commands>>, Mutex<Bound>),
}

impl<P: ?Sized> Drop for ProtocolObject<P> {
    fn drop(&mut self) {
        if let Object::Buffer(memory) = &self.0 {
            memory.freed.store(true, Ordering::SeqCst);
        }
    }
}

type Object1<P> = Retained<ProtocolObject<P>>;

fn object<P: ?Sized>(object: Object) -> Object1<P> {
    Retained::new(ProtocolObject(object, PhantomData))
}

/// What cannot happen, because each protocol's objects are made by one function here.
#[cold]
fn other_protocol() -> ! {
    unreachable!("an object of another protocol")
}

/// A string.
pub struct NSString(String);
impl NSString {
    /// A copy.
    #[expect(clippy::should_implement_trait, reason = "objc2's name")]
    pub fn from_str(text: &str) -> Retained<Self> {
        Retained::new(Self(text.to_owned()))
    }
}
impl fmt::Display for NSString {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

/// An error.
pub struct NSError(String);
impl NSError {
    /// In words.
    pub fn localizedDescription(&self) -> Retained<NSString> {
        NSString::from_str(&self.0)
    }
}

/// Three lengths.
#[derive(Debug, Clone, Copy)]
pub struct MTLSize {
    /// x.
    pub width: usize,
    /// y.
    pub height: usize,
    /// z.
    pub depth: usize,
}

/// Constants that are numbers.
macro_rules! numbers {
    ($($(#[$meta:meta])* $name:ident($t:ty) { $($constant:ident = $value:expr),* $(,)? })*) => {$(
        $(#[$meta])*
        #[derive(Debug, Clone, Copy, PartialEq, Eq)]
        pub struct $name(pub $t);
        #[allow(missing_docs, reason = "Apple's names")]
        impl $name {
            $(pub const $constant: Self = Self($value);)*
        }
    )*};
}
numbers! {
    /// How memory is kept.
    MTLResourceOptions(usize) { StorageModeShared = 0, HazardTrackingModeUntracked = 1 << 8 }
    /// Whether dispatches of a pass may overlap.
    MTLDispatchType(usize) { Serial = 0, Concurrent = 1 }
    /// What a barrier orders.
    MTLBarrierScope(usize) { Buffers = 1 }
    /// Versions of the language.
    MTLLanguageVersion(usize) { Version3_1 = (3 << 16) + 1, Version4_0 = 4 << 16 }
    /// How freely floats are computed.
    MTLMathMode(isize) { Safe = 0 }
    /// Types of function constants.
    MTLDataType(usize) { UInt = 33 }
}
impl std::ops::BitOr for MTLResourceOptions {
    type Output = Self;
    fn bitor(self, other: Self) -> Self {
        Self(self.0 | other.0)
    }
}

/// How a library is compiled; the executor knows one way.
pub struct MTLCompileOptions(());
impl MTLCompileOptions {
    /// The defaults.
    pub fn new() -> Retained<Self> {
        Retained::new(Self(()))
    }
    /// Ignored.
    pub fn setLanguageVersion(&self, _: MTLLanguageVersion) {}
    /// Ignored: the executor is always safe.
    pub fn setMathMode(&self, _: MTLMathMode) {}
}

/// Values of function constants.
pub struct MTLFunctionConstantValues(Mutex<Vec<(usize, Vec<u8>)>>);
impl MTLFunctionConstantValues {
    /// None.
    pub fn new() -> Retained<Self> {
        Retained::new(Self(Mutex::default()))
    }
    /// Sets one.
    ///
    /// # Safety
    /// `value` points to a value of the type.
    pub unsafe fn setConstantValue_type_atIndex(&self, value: NonNull<c_void>, _: MTLDataType, index: usize) {
        // SAFETY: the caller's; the one type here has four bytes.
        let bytes = unsafe { value.cast::<[u8; 4]>().read_unaligned() };
        self.0.lock().unwrap_or_else(PoisonError::into_inner).push((index, bytes.to_vec()));
    }
}

/// The device.
pub fn MTLCreateSystemDefaultDevice() -> Option<Object1<dyn MTLDevice>> {
    Some(object(Object::Device))
}

/// Pools are for Objective-C.
pub fn autoreleasepool<R>(f: impl FnOnce(()) -> R) -> R {
    f(())
}

/// A device.
#[allow(missing_docs, reason = "Apple's names")]
pub trait MTLDevice {
    fn name(&self) -> Retained<NSString>;
    fn recommendedMaxWorkingSetSize(&self) -> u64;
    fn newCommandQueue(&self) -> Option<Object1<dyn MTLCommandQueue>>;
    fn newBufferWithLength_options(&self, length: usize, options: MTLResourceOptions)
    -> Option<Object1<dyn MTLBuffer>>;
    fn newLibraryWithSource_options_error(
        &self,
        source: &NSString,
        options: Option<&MTLCompileOptions>,
    ) -> Result<Object1<dyn MTLLibrary>, Retained<NSError>>;
    fn newComputePipelineStateWithFunction_error(
        &self,
        function: &ProtocolObject<dyn MTLFunction>,
    ) -> Result<Object1<dyn MTLComputePipelineState>, Retained<NSError>>;
}
impl MTLDevice for ProtocolObject<dyn MTLDevice> {
    fn name(&self) -> Retained<NSString> {
        NSString::from_str("software")
    }
    fn recommendedMaxWorkingSetSize(&self) -> u64 {
        u64::MAX
    }
    fn newCommandQueue(&self) -> Option<Object1<dyn MTLCommandQueue>> {
        Some(object(Object::Queue))
    }
    fn newBufferWithLength_options(&self, length: usize, _: MTLResourceOptions) -> Option<Object1<dyn MTLBuffer>> {
        (length > 0).then(|| object(Object::Buffer(Arc::new(Memory::new(length)))))
    }
    fn newLibraryWithSource_options_error(
        &self,
        source: &NSString,
        _: Option<&MTLCompileOptions>,
    ) -> Result<Object1<dyn MTLLibrary>, Retained<NSError>> {
        match Library::build("source", &source.0, mode().is_checked()) {
            Ok(library) => Ok(object(Object::Library(Arc::new(library)))),
            Err(e) => Err(Retained::new(NSError(e.sentence()))),
        }
    }
    fn newComputePipelineStateWithFunction_error(
        &self,
        function: &ProtocolObject<dyn MTLFunction>,
    ) -> Result<Object1<dyn MTLComputePipelineState>, Retained<NSError>> {
        let Object::Function(pipeline) = &function.0 else { other_protocol() };
        match pipeline.missing_constant() {
            Some(index) => Err(Retained::new(NSError(format!("function constant {index} has no value")))),
            None => Ok(object(Object::Pipeline(pipeline.clone()))),
        }
    }
}

/// A function of a library.
pub trait MTLFunction {}

/// A library.
#[allow(missing_docs, reason = "Apple's names")]
pub trait MTLLibrary {
    fn newFunctionWithName_constantValues_error(
        &self,
        name: &NSString,
        values: &MTLFunctionConstantValues,
    ) -> Result<Object1<dyn MTLFunction>, Retained<NSError>>;
}
impl MTLLibrary for ProtocolObject<dyn MTLLibrary> {
    fn newFunctionWithName_constantValues_error(
        &self,
        name: &NSString,
        values: &MTLFunctionConstantValues,
    ) -> Result<Object1<dyn MTLFunction>, Retained<NSError>> {
        let Object::Library(library) = &self.0 else { other_protocol() };
        let Some(parameters) = library.parameters(&name.0) else {
            return Err(Retained::new(NSError(format!("the library has no kernel {name}"))));
        };
        let constants = values.0.lock().unwrap_or_else(PoisonError::into_inner).clone();
        let pipeline = Pipeline { library: Arc::clone(library), kernel: name.0.clone(), parameters, constants };
        Ok(object(Object::Function(pipeline)))
    }
}

/// A compiled kernel.
#[allow(missing_docs, reason = "Apple's names")]
pub trait MTLComputePipelineState {
    fn maxTotalThreadsPerThreadgroup(&self) -> usize;
    fn threadExecutionWidth(&self) -> usize;
}
impl MTLComputePipelineState for ProtocolObject<dyn MTLComputePipelineState> {
    fn maxTotalThreadsPerThreadgroup(&self) -> usize {
        1024
    }
    fn threadExecutionWidth(&self) -> usize {
        32
    }
}

/// What has a label.
#[allow(missing_docs, reason = "Apple's names")]
pub trait MTLResource {
    fn setLabel(&self, label: Option<&NSString>);
}
impl MTLResource for ProtocolObject<dyn MTLBuffer> {
    fn setLabel(&self, label: Option<&NSString>) {
        let Object::Buffer(memory) = &self.0 else { other_protocol() };
        *locked(&memory.label) = label.map(|label| label.0.clone());
    }
}

/// Memory.
#[allow(missing_docs, reason = "Apple's names")]
pub trait MTLBuffer: MTLResource {
    fn contents(&self) -> NonNull<c_void>;
    fn length(&self) -> usize;
}
impl MTLBuffer for ProtocolObject<dyn MTLBuffer> {
    fn contents(&self) -> NonNull<c_void> {
        let Object::Buffer(memory) = &self.0 else { other_protocol() };
        memory.start().cast()
    }
    fn length(&self) -> usize {
        let Object::Buffer(memory) = &self.0 else { other_protocol() };
        memory.length()
    }
}

/// A queue.
#[allow(missing_docs, reason = "Apple's names")]
pub trait MTLCommandQueue {
    fn commandBuffer(&self) -> Option<Object1<dyn MTLCommandBuffer>>;
}
impl MTLCommandQueue for ProtocolObject<dyn MTLCommandQueue> {
    fn commandBuffer(&self) -> Option<Object1<dyn MTLCommandBuffer>> {
        Some(object(Object::Commands(Arc::default())))
    }
}

/// A command buffer.
#[allow(missing_docs, reason = "Apple's names")]
pub trait MTLCommandBuffer {
    fn computeCommandEncoderWithDispatchType(
        &self,
        how: MTLDispatchType,
    ) -> Option<Object1<dyn MTLComputeCommandEncoder>>;
    fn commit(&self);
    fn waitUntilCompleted(&self);
    fn error(&self) -> Option<Retained<NSError>>;
}
impl ProtocolObject<dyn MTLCommandBuffer> {
    fn commands(&self) -> &Arc<Mutex<Commands>> {
        let Object::Commands(commands) = &self.0 else { other_protocol() };
        commands
    }
}
impl MTLCommandBuffer for ProtocolObject<dyn MTLCommandBuffer> {
    fn computeCommandEncoderWithDispatchType(
        &self,
        how: MTLDispatchType,
    ) -> Option<Object1<dyn MTLComputeCommandEncoder>> {
        let mut commands = locked(self.commands());
        commands.begin(how == MTLDispatchType::Concurrent);
        Some(object(Object::Encoder(Arc::clone(self.commands()), Mutex::default())))
    }
    fn commit(&self) {
        locked(self.commands()).run();
    }
    fn waitUntilCompleted(&self) {
        let mut commands = locked(self.commands());
        if !commands.committed() {
            commands.fail("waited for a command buffer that was not committed");
        }
    }
    fn error(&self) -> Option<Retained<NSError>> {
        locked(self.commands()).error().map(|e| Retained::new(NSError(e)))
    }
}

fn locked<T>(mutex: &Mutex<T>) -> std::sync::MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

/// An encoder.
#[allow(missing_docs, reason = "Apple's names")]
pub trait MTLCommandEncoder {
    fn endEncoding(&self);
}

/// An encoder of dispatches.
#[allow(missing_docs, reason = "Apple's names")]
pub trait MTLComputeCommandEncoder: MTLCommandEncoder {
    fn setComputePipelineState(&self, pipeline: &ProtocolObject<dyn MTLComputePipelineState>);
    unsafe fn setBuffer_offset_atIndex(
        &self,
        buffer: Option<&ProtocolObject<dyn MTLBuffer>>,
        offset: usize,
        index: usize,
    );
    unsafe fn setBytes_length_atIndex(&self, bytes: NonNull<c_void>, length: usize, index: usize);
    unsafe fn setThreadgroupMemoryLength_atIndex(&self, length: usize, index: usize);
    fn dispatchThreadgroups_threadsPerThreadgroup(&self, groups: MTLSize, threads: MTLSize);
    fn memoryBarrierWithScope(&self, scope: MTLBarrierScope);
}
impl ProtocolObject<dyn MTLComputeCommandEncoder> {
    fn parts(&self) -> (std::sync::MutexGuard<'_, Commands>, std::sync::MutexGuard<'_, Bound>) {
        let Object::Encoder(commands, bound) = &self.0 else { other_protocol() };
        let mut commands = locked(commands);
        if !commands.encoding() {
            commands.fail("an encoder was used after endEncoding");
        }
        (commands, locked(bound))
    }
}
impl MTLCommandEncoder for ProtocolObject<dyn MTLComputeCommandEncoder> {
    fn endEncoding(&self) {
        self.parts().0.end();
    }
}
impl MTLComputeCommandEncoder for ProtocolObject<dyn MTLComputeCommandEncoder> {
    fn setComputePipelineState(&self, pipeline: &ProtocolObject<dyn MTLComputePipelineState>) {
        let Object::Pipeline(pipeline) = &pipeline.0 else { other_protocol() };
        self.parts().1.pipeline = Some(pipeline.clone());
    }
    unsafe fn setBuffer_offset_atIndex(
        &self,
        buffer: Option<&ProtocolObject<dyn MTLBuffer>>,
        offset: usize,
        index: usize,
    ) {
        let (mut commands, mut bound) = self.parts();
        match buffer.map(|buffer| &buffer.0) {
            Some(Object::Buffer(memory)) => {
                if let Err(problem) = bound.buffer(memory, offset, index) {
                    commands.fail(&problem);
                }
            }
            Some(_) => other_protocol(),
            None => bound.forget(index),
        }
    }
    unsafe fn setBytes_length_atIndex(&self, bytes: NonNull<c_void>, length: usize, index: usize) {
        let (mut commands, mut bound) = self.parts();
        // SAFETY: the caller's.
        let bytes = unsafe { std::slice::from_raw_parts(bytes.cast::<u8>().as_ptr(), length) };
        if let Err(problem) = bound.bytes(bytes, index) {
            commands.fail(&problem);
        }
    }
    unsafe fn setThreadgroupMemoryLength_atIndex(&self, length: usize, index: usize) {
        let (mut commands, mut bound) = self.parts();
        if let Err(problem) = bound.memory(length, index) {
            commands.fail(&problem);
        }
    }
    fn dispatchThreadgroups_threadsPerThreadgroup(&self, groups: MTLSize, threads: MTLSize) {
        let (mut commands, bound) = self.parts();
        let dims = |s: MTLSize| [s.width, s.height, s.depth].map(|n| u32::try_from(n).unwrap_or(u32::MAX));
        match bound.dispatch(dims(groups), dims(threads)) {
            Ok(dispatch) => commands.push(Command::Dispatch(dispatch)),
            Err(problem) => commands.fail(&problem),
        }
    }
    fn memoryBarrierWithScope(&self, _: MTLBarrierScope) {
        self.parts().0.push(Command::Barrier);
    }
}
