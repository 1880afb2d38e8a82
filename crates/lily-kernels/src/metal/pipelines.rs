//! Kernels compiled from their sources, once for each set of constants, and an archive of what was compiled. The archive is
//! there to save time only: whatever is wrong with it, kernels are compiled without it.

use std::collections::HashMap;
use std::collections::hash_map::DefaultHasher;
use std::ffi::c_void;
use std::fs;
use std::hash::{Hash, Hasher};
use std::path::{Path, PathBuf};
use std::ptr::NonNull;

use super::api::*;
use super::device::{Launch, Object, Source, failed};
use super::lower::sources;
use crate::backend::{DeviceError, Feature};
use crate::policy::SIMD;

/// Compiled kernels.
pub struct Pipelines {
    device: Object<dyn MTLDevice>,
    language: MTLLanguageVersion,
    libraries: HashMap<Source, Object<dyn MTLLibrary>>,
    known: HashMap<(Source, &'static str, Vec<u32>), Object<dyn MTLComputePipelineState>>,
    archive: Result<Archive, String>,
}

struct Archive {
    object: Object<dyn MTLBinaryArchive>,
    path: PathBuf,
    /// What is in it was on the disk.
    found: bool,
    /// It has more than the disk.
    grown: bool,
}

// SAFETY: an archive may be used on any thread, and `Pipelines`, which alone has it, by one at a time.
unsafe impl Send for Archive {}

impl Pipelines {
    /// Names of the kernels that were compiled, some twice.
    pub fn kernels(&self) -> impl Iterator<Item = &'static str> {
        self.known.keys().map(|(_, kernel, _)| *kernel)
    }

    /// None yet.
    pub fn new(device: Object<dyn MTLDevice>, language: MTLLanguageVersion) -> Self {
        let archive = Err("nobody named a folder for it".to_owned());
        Self { device, language, libraries: HashMap::new(), known: HashMap::new(), archive }
    }

    /// Compiles a kernel, unless it was.
    ///
    /// # Errors
    /// Metal refuses it.
    pub fn get(&mut self, launch: &Launch) -> Result<Object<dyn MTLComputePipelineState>, DeviceError> {
        let key = (launch.source, launch.kernel, launch.constants.to_vec());
        if let Some(known) = self.known.get(&key) {
            return Ok(known.clone());
        }
        let refused = |e: Retained<NSError>| failed(format!("{}: {}", launch.kernel, e.localizedDescription()));
        if !self.libraries.contains_key(&launch.source) {
            let options = MTLCompileOptions::new();
            options.setLanguageVersion(self.language);
            options.setMathMode(MTLMathMode::Safe);
            let text = NSString::from_str(&launch.source.text());
            let library = self.device.newLibraryWithSource_options_error(&text, Some(&options)).map_err(refused)?;
            self.libraries.insert(launch.source, library);
        }
        let values = MTLFunctionConstantValues::new();
        for (index, value) in launch.constants.iter().enumerate() {
            // SAFETY: points to a u32, which the type says.
            unsafe {
                values.setConstantValue_type_atIndex(NonNull::from(value).cast::<c_void>(), MTLDataType::UInt, index);
            }
        }
        let library = &self.libraries[&launch.source];
        let name = NSString::from_str(launch.kernel);
        let function = library.newFunctionWithName_constantValues_error(&name, &values).map_err(refused)?;
        let pipeline = self.pipeline(&function).map_err(refused)?;
        if pipeline.threadExecutionWidth() != SIMD {
            return Err(failed(format!("simdgroups of {} threads", pipeline.threadExecutionWidth())));
        }
        self.known.insert(key, pipeline.clone());
        Ok(pipeline)
    }

    fn pipeline(
        &mut self,
        function: &ProtocolObject<dyn MTLFunction>,
    ) -> Result<Object<dyn MTLComputePipelineState>, Retained<NSError>> {
        let Ok(archive) = &mut self.archive else {
            return self.device.newComputePipelineStateWithFunction_error(function);
        };
        let descriptor = MTLComputePipelineDescriptor::new();
        descriptor.setComputeFunction(Some(function));
        let archives = NSArray::from_retained_slice(std::slice::from_ref(&archive.object));
        descriptor.setBinaryArchives(Some(&archives));
        // What the archive has already is not added again.
        let missing = MTLPipelineOption::FailOnBinaryArchiveMiss;
        let found =
            self.device.newComputePipelineStateWithDescriptor_options_reflection_error(&descriptor, missing, None);
        if let Ok(pipeline) = found {
            return Ok(pipeline);
        }
        archive.grown |= archive.object.addComputePipelineFunctionsWithDescriptor_error(&descriptor).is_ok();
        self.device.newComputePipelineStateWithFunction_error(function)
    }

    /// Names the folder of the archive, and reads what is there.
    pub fn archive_in(&mut self, folder: &Path) {
        let mut hasher = DefaultHasher::new();
        // Another text, language or system is another archive.
        sources::ALL.iter().for_each(|source| source.text().hash(&mut hasher));
        (self.language.0, system_version(), self.device.name().to_string()).hash(&mut hasher);
        let path = folder.join(format!("kernels-{:016x}.metalar", hasher.finish()));
        let open = |from: Option<&Path>| {
            let descriptor = MTLBinaryArchiveDescriptor::new();
            if let Some(path) = from {
                descriptor.setUrl(Some(&url(path)));
            }
            self.device.newBinaryArchiveWithDescriptor_error(&descriptor)
        };
        self.archive = autoreleasepool(|_| {
            if path.exists()
                && let Ok(object) = open(Some(&path))
            {
                return Ok(Archive { object, path: path.clone(), found: true, grown: false });
            }
            match open(None) {
                Ok(object) => Ok(Archive { object, path: path.clone(), found: false, grown: false }),
                Err(e) => Err(e.localizedDescription().to_string()),
            }
        });
    }

    /// Writes the archive, if it has more than the disk.
    pub fn save(&mut self) {
        let Ok(archive) = &mut self.archive else { return };
        if !std::mem::take(&mut archive.grown) {
            return;
        }
        // Another process may be writing too: each writes its own file, and the last one stays.
        let own = archive.path.with_extension(format!("{}.tmp", std::process::id()));
        let folder = archive.path.parent().map_or(Ok(()), fs::create_dir_all);
        let written = folder.map_err(|e| e.to_string()).and_then(|()| {
            let saved = autoreleasepool(|_| {
                archive.object.serializeToURL_error(&url(&own)).map_err(|e| e.localizedDescription().to_string())
            });
            saved.and_then(|()| fs::rename(&own, &archive.path).map_err(|e| e.to_string()))
        });
        if let Err(why) = written {
            let _ = fs::remove_file(&own);
            self.archive = Err(format!("it cannot be written: {why}"));
        }
    }

    /// For people.
    pub fn row(&self) -> Feature {
        let (available, why) = match &self.archive {
            Ok(archive) if archive.found => (true, format!("read from {}", archive.path.display())),
            Ok(archive) => (true, format!("begun in {}", archive.path.display())),
            Err(why) => (false, format!("{why}; kernels are compiled anew")),
        };
        Feature { name: "archive of kernels", available, why }
    }
}

fn url(path: &Path) -> Retained<NSURL> {
    NSURL::fileURLWithPath(&NSString::from_str(&path.to_string_lossy()))
}
