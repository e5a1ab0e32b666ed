//! From the image that a program hands over to code that can run.

use std::sync::Arc;

use sluice_image::pointer::locate;
use sluice_image::{ComputeCapability, Image, ImageError};

use crate::code::Code;
use crate::link;
use crate::status::{Result, Status};

/// The code in `images`: one image, or several that belong to one program and are linked.
/// The error comes with a message for the JIT log.
pub(crate) fn code(images: &[&[u8]]) -> std::result::Result<Arc<Code>, (Status, String)> {
    let texts: Vec<_> = images.iter().map(|image| ptx(image)).collect::<std::result::Result<_, _>>()?;
    let linked;
    let text = match texts.as_slice() {
        [one] => one.as_ref(),
        [] => return Err((Status::INVALID_IMAGE, "no image".to_owned())),
        several => {
            linked = link::link(several.iter().map(AsRef::as_ref));
            &linked
        }
    };
    Code::new(text).map_err(|message| (Status::INVALID_PTX, message))
}

/// The PTX of one image that this device would compile.
fn ptx(image: &[u8]) -> std::result::Result<std::borrow::Cow<'_, [u8]>, (Status, String)> {
    let parsed = Image::parse(image).and_then(|image| image.ptx(ComputeCapability::SOFTWARE_GPU));
    parsed.map_err(|error| (status_of(&error), error.to_string()))
}

fn status_of(error: &ImageError) -> Status {
    match error {
        ImageError::NullPointer => Status::INVALID_VALUE,
        ImageError::NoEligiblePtx { .. } => Status::NO_BINARY_FOR_GPU,
        _ => Status::INVALID_IMAGE,
    }
}

/// Reports a failed load: a log for the program, and one line on stderr where the way out is not the program's own.
pub(crate) fn report(failure: (Status, String), logs: &crate::jit_options::Logs) -> Status {
    let (status, message) = failure;
    logs.finish(&message);
    if status == Status::NO_BINARY_FOR_GPU {
        eprintln!(
            "sluice: a module has no PTX that a software GPU can run: {message}. Build it with PTX for compute capability \
             12.0 or lower, or tell the program to hand PTX over (CuPy: CUPY_COMPILE_WITH_PTX=1)"
        );
    }
    status
}

/// The code of the image at a pointer, as the driver API passes it. A program built as relocatable device code
/// brings the images it was linked from, and those are what has PTX.
///
/// # Safety
/// As for [`locate`].
pub(crate) unsafe fn code_at(
    pointer: *const std::ffi::c_void,
    logs: &crate::jit_options::Logs,
) -> Result<Arc<Code>> {
    // SAFETY: passed on.
    let located = unsafe { locate(pointer) }.map_err(|error| (status_of(&error), error.to_string()));
    let loaded = located.and_then(|located| match located.parts.as_slice() {
        [] => code(&[located.image]),
        parts => code(parts),
    });
    match loaded {
        Ok(code) => {
            logs.finish("");
            Ok(code)
        }
        Err(failure) => Err(report(failure, logs)),
    }
}
