//! From the image that a program hands over to code that can run.

use std::sync::Arc;

use sluice_image::ImageError;
use sluice_image::pointer::locate;
use sluice_ptx::Tuning;

use crate::base::status::{Result, Status};
use crate::device::driver;
use crate::device::machine::Code;

/// The code in `images`: one image, or several that belong to one program and are linked.
/// The error comes with a message for the JIT log.
pub(crate) fn code(images: &[&[u8]], tuning: Tuning) -> std::result::Result<Arc<dyn Code>, (Status, String)> {
    let driver = driver().map_err(|status| (status, String::new()))?;
    let device = driver.devices.first().ok_or((Status::NO_DEVICE, String::new()))?;
    driver.machine.load(images, &device.limits, tuning)
}

pub(crate) fn status_of(error: &ImageError) -> Status {
    match error {
        ImageError::NullPointer => Status::INVALID_VALUE,
        ImageError::NoEligiblePtx { .. } => Status::NO_BINARY_FOR_GPU,
        _ => Status::INVALID_IMAGE,
    }
}

/// Reports a failed load: a log for the program, and one line on stderr where the way out is not
/// the program's own.
pub(crate) fn report(failure: (Status, String), logs: &crate::compiler::jit_options::Logs) -> Status {
    let (status, message) = failure;
    logs.finish(&message);
    if status == Status::NO_BINARY_FOR_GPU {
        let way_out = driver().map_or("", |driver| driver.machine.way_out());
        eprintln!("sluice: {message}: {way_out}");
    }
    status
}

/// The code of the image at a pointer, as the driver API passes it. A program built as relocatable
/// device code brings the images it was linked from, and those are what has PTX.
///
/// # Safety
/// As for [`locate`].
pub(crate) unsafe fn code_at(
    pointer: *const std::ffi::c_void,
    logs: &crate::compiler::jit_options::Logs,
) -> Result<Arc<dyn Code>> {
    // SAFETY: passed on.
    let located = unsafe { locate(pointer) }.map_err(|error| (status_of(&error), error.to_string()));
    let loaded = located.and_then(|located| match located.parts.as_slice() {
        [] => code(&[located.image], logs.tuning),
        parts => code(parts, logs.tuning),
    });
    match loaded {
        Ok(code) => {
            logs.finish("");
            Ok(code)
        }
        Err(failure) => Err(report(failure, logs)),
    }
}
