//! The names of objc2, objc2-foundation and objc2-metal that Lily's host uses, over the executor. Encoders record;
//! a queue
//! runs what they recorded when the host waits, and what went wrong is the command buffer's error.
//! Only what is here exists: a host that wants more does not compile on Linux, and then more is written here.
#![allow(non_snake_case, non_upper_case_globals, clippy::missing_safety_doc, reason = "the names are Apple's")]

mod encoding;
mod more;

use std::ffi::c_void;
use std::fmt;
use std::marker::PhantomData;
use std::ptr::NonNull;
use std::sync::atomic::Ordering;
use std::sync::{Arc, Mutex};

pub use encoding::*;
pub use more::*;

use crate::commands::{Bound, Commands, Memory, Pipeline};
use crate::library::Library;
use crate::machine::{Machine, machine};
use crate::mode::mode;
use crate::queue::{Event, Queue, locked};

/// What a source is called here: Metal's have no names.
pub const SOURCE: &str = "source";

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
#[repr(transparent)]
pub struct ProtocolObject<P: ?Sized>(Object, PhantomData<fn(&P)>);

impl<P: ?Sized> ProtocolObject<P> {
    /// The same object by another of its protocols.
    pub fn from_ref<Q: ?Sized>(other: &ProtocolObject<Q>) -> &Self {
        // SAFETY: both are nothing but an `Object`.
        unsafe { &*std::ptr::from_ref(other).cast::<Self>() }
    }
}

enum Object {
    Device(Box<Machine>),
    Residents(Mutex<Residents>),
    Archive(Archive),
    Queue(Arc<Queue>),
    Event(Arc<Event>),
    Library(Arc<Library>),
    Function(Pipeline),
    Pipeline(Pipeline),
    Buffer(Arc<Memory>),
    Commands(Arc<Mutex<Commands>>, Arc<Queue>),
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
        #[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
        pub struct $name(pub $t);
        #[allow(missing_docs, reason = "Apple's names")]
        impl $name {
            $(pub const $constant: Self = Self($value);)*
        }
    )*};
}
use numbers;
numbers! {
    /// How memory is kept.
    MTLResourceOptions(usize) { StorageModeShared = 0, HazardTrackingModeUntracked = 1 << 8 }
    /// Whether dispatches of a pass may overlap.
    MTLDispatchType(usize) { Serial = 0, Concurrent = 1 }
    /// What a barrier orders.
    MTLBarrierScope(usize) { Buffers = 1 }
    /// Versions of the language.
    MTLLanguageVersion(usize) { Version3_1 = (3 << 16) + 1, Version3_2 = (3 << 16) + 2, Version4_0 = 4 << 16 }
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
pub struct MTLCompileOptions(Mutex<usize>);
impl MTLCompileOptions {
    /// The defaults.
    pub fn new() -> Retained<Self> {
        Retained::new(Self(Mutex::default()))
    }
    /// The machine may not know it.
    pub fn setLanguageVersion(&self, version: MTLLanguageVersion) {
        *locked(&self.0) = version.0;
    }
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
        locked(&self.0).push((index, bytes.to_vec()));
    }
}

/// The device.
pub fn MTLCreateSystemDefaultDevice() -> Option<Object1<dyn MTLDevice>> {
    Some(object(Object::Device(Box::new(machine()))))
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
    fn newSharedEvent(&self) -> Option<Object1<dyn MTLSharedEvent>>;
    fn newBufferWithLength_options(&self, length: usize, options: MTLResourceOptions)
    -> Option<Object1<dyn MTLBuffer>>;
    unsafe fn newBufferWithBytesNoCopy_length_options_deallocator(
        &self,
        pointer: NonNull<c_void>,
        length: usize,
        options: MTLResourceOptions,
        deallocator: Option<&fn()>,
    ) -> Option<Object1<dyn MTLBuffer>>;
    fn maxBufferLength(&self) -> usize;
    fn currentAllocatedSize(&self) -> usize;
    fn supportsFamily(&self, family: MTLGPUFamily) -> bool;
    fn newResidencySetWithDescriptor_error(
        &self,
        descriptor: &MTLResidencySetDescriptor,
    ) -> Result<Object1<dyn MTLResidencySet>, Retained<NSError>>;
    fn newBinaryArchiveWithDescriptor_error(
        &self,
        descriptor: &MTLBinaryArchiveDescriptor,
    ) -> Result<Object1<dyn MTLBinaryArchive>, Retained<NSError>>;
    fn newComputePipelineStateWithDescriptor_options_reflection_error(
        &self,
        descriptor: &MTLComputePipelineDescriptor,
        options: MTLPipelineOption,
        reflection: Option<&mut ()>,
    ) -> Result<Object1<dyn MTLComputePipelineState>, Retained<NSError>>;
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
impl ProtocolObject<dyn MTLDevice> {
    fn machine(&self) -> &Machine {
        let Object::Device(machine) = &self.0 else { other_protocol() };
        machine
    }
}
fn error<T>(text: impl Into<String>) -> Result<T, Retained<NSError>> {
    Err(Retained::new(NSError(text.into())))
}
impl MTLDevice for ProtocolObject<dyn MTLDevice> {
    fn name(&self) -> Retained<NSString> {
        NSString::from_str(&crate::nvidia::card().unwrap_or_else(|| "software".to_owned()))
    }
    fn recommendedMaxWorkingSetSize(&self) -> u64 {
        self.machine().working_set
    }
    fn newCommandQueue(&self) -> Option<Object1<dyn MTLCommandQueue>> {
        Some(object(Object::Queue(Arc::default())))
    }
    fn newSharedEvent(&self) -> Option<Object1<dyn MTLSharedEvent>> {
        Some(object(Object::Event(Arc::default())))
    }
    fn newBufferWithLength_options(&self, length: usize, _: MTLResourceOptions) -> Option<Object1<dyn MTLBuffer>> {
        let fits = (1..=self.machine().longest).contains(&length);
        let memory = if fits { Memory::new(length) } else { None };
        memory.map(|memory| object(Object::Buffer(Arc::new(memory))))
    }
    unsafe fn newBufferWithBytesNoCopy_length_options_deallocator(
        &self,
        pointer: NonNull<c_void>,
        length: usize,
        _: MTLResourceOptions,
        _: Option<&fn()>,
    ) -> Option<Object1<dyn MTLBuffer>> {
        let whole = pointer.addr().get().is_multiple_of(PAGE) && length.is_multiple_of(PAGE) && length > 0;
        let takes = self.machine().no_copy && whole && length <= self.machine().longest;
        takes.then(|| of_host(Memory::of_host(pointer.cast(), length)))
    }
    fn maxBufferLength(&self) -> usize {
        self.machine().longest
    }
    fn currentAllocatedSize(&self) -> usize {
        crate::commands::allocated()
    }
    fn supportsFamily(&self, family: MTLGPUFamily) -> bool {
        self.machine().families.contains(&family.0)
    }
    fn newResidencySetWithDescriptor_error(
        &self,
        _: &MTLResidencySetDescriptor,
    ) -> Result<Object1<dyn MTLResidencySet>, Retained<NSError>> {
        match self.machine().residency_sets {
            true => Ok(object(Object::Residents(Mutex::default()))),
            false => error("no residency sets"),
        }
    }
    fn newBinaryArchiveWithDescriptor_error(
        &self,
        descriptor: &MTLBinaryArchiveDescriptor,
    ) -> Result<Object1<dyn MTLBinaryArchive>, Retained<NSError>> {
        if !self.machine().binary_archives {
            return error("no binary archives");
        }
        descriptor.open().map(|archive| object(Object::Archive(archive))).or_else(error)
    }
    fn newComputePipelineStateWithDescriptor_options_reflection_error(
        &self,
        descriptor: &MTLComputePipelineDescriptor,
        options: MTLPipelineOption,
        _: Option<&mut ()>,
    ) -> Result<Object1<dyn MTLComputePipelineState>, Retained<NSError>> {
        let Some(pipeline) = descriptor.pipeline() else { return error("a pipeline of no function") };
        if options == MTLPipelineOption::FailOnBinaryArchiveMiss && !descriptor.is_archived() {
            return error("no archive has it");
        }
        self.newComputePipelineStateWithFunction_error(&ProtocolObject(Object::Function(pipeline), PhantomData))
    }
    fn newLibraryWithSource_options_error(
        &self,
        source: &NSString,
        options: Option<&MTLCompileOptions>,
    ) -> Result<Object1<dyn MTLLibrary>, Retained<NSError>> {
        let Machine { language, unknown, .. } = self.machine();
        if options.is_some_and(|options| *locked(&options.0) > *language) {
            return error("error: no such version of the language");
        }
        if let Some(word) = unknown.iter().find(|word| source.0.contains(**word)) {
            return error(format!("error: the compiler does not know {word}"));
        }
        match Library::build(SOURCE, &source.0, mode()) {
            Ok(library) => Ok(object(Object::Library(Arc::new(library)))),
            Err(e) => error(e.sentence()),
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
        let Some(parameters) = library.parameters(&name.0).cloned() else {
            return Err(Retained::new(NSError(format!("the library has no kernel {name}"))));
        };
        let constants = locked(&values.0).clone();
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
        memory.host_looks();
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
    fn addResidencySet(&self, set: &ProtocolObject<dyn MTLResidencySet>);
}
impl MTLCommandQueue for ProtocolObject<dyn MTLCommandQueue> {
    fn commandBuffer(&self) -> Option<Object1<dyn MTLCommandBuffer>> {
        let Object::Queue(queue) = &self.0 else { other_protocol() };
        Some(object(Object::Commands(Arc::default(), Arc::clone(queue))))
    }
    fn addResidencySet(&self, _: &ProtocolObject<dyn MTLResidencySet>) {}
}

/// An event.
pub trait MTLEvent {}

/// An event that the host sees.
#[allow(missing_docs, reason = "Apple's names")]
pub trait MTLSharedEvent: MTLEvent {
    fn signaledValue(&self) -> u64;
    fn setSignaledValue(&self, value: u64);
}
impl<P: ?Sized> ProtocolObject<P> {
    fn event(&self) -> &Arc<Event> {
        let Object::Event(event) = &self.0 else { other_protocol() };
        event
    }
}
impl MTLEvent for ProtocolObject<dyn MTLSharedEvent> {}
impl MTLSharedEvent for ProtocolObject<dyn MTLSharedEvent> {
    fn signaledValue(&self) -> u64 {
        self.event().value()
    }
    fn setSignaledValue(&self, value: u64) {
        self.event().signal(value);
    }
}
