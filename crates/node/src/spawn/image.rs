//! The program that a process runs next, in place of the present one.

use std::ffi::{CString, OsStr};
use std::io;
use std::os::fd::RawFd;
use std::os::unix::ffi::OsStrExt;
use std::path::Path;
use std::ptr::null;

/// A program with its arguments, and what it gets of this one's.
#[derive(Debug)]
pub(crate) struct Image {
    program: CString,
    arguments: Vec<CString>,
    environment: Vec<CString>,
    /// Stay open, under their numbers.
    descriptors: Vec<RawFd>,
}

impl Image {
    /// With the environment of this process.
    pub(crate) fn new(
        program: &Path,
        arguments: impl Iterator<Item = impl AsRef<OsStr>>,
        descriptors: Vec<RawFd>,
    ) -> io::Result<Image> {
        let set = |(name, value): (std::ffi::OsString, std::ffi::OsString)| {
            [name.as_bytes(), value.as_bytes()].join(&b'=')
        };
        let environment: Result<_, _> = std::env::vars_os().map(|pair| CString::new(set(pair))).collect();
        let arguments: Result<_, _> =
            arguments.map(|argument| CString::new(argument.as_ref().as_bytes())).collect();
        let program = CString::new(program.as_os_str().as_bytes())?;
        Ok(Image { program, arguments: arguments?, environment: environment?, descriptors })
    }

    /// Becomes that program. Returns only if that is not possible; then nothing has changed.
    pub(super) fn run(&self) -> io::Error {
        let pointers =
            |of: &[CString]| of.iter().map(|text| text.as_ptr()).chain([null()]).collect::<Vec<_>>();
        let (arguments, environment) = (pointers(&self.arguments), pointers(&self.environment));
        for &descriptor in &self.descriptors {
            if let Err(error) = set_inherited(descriptor, true) {
                self.keep_back();
                return error;
            }
        }
        // SAFETY: the texts end in zeros, the lists of them in null pointers, and all of them
        // outlive the call.
        unsafe { libc::execve(self.program.as_ptr(), arguments.as_ptr(), environment.as_ptr()) };
        let error = io::Error::last_os_error();
        self.keep_back();
        error
    }

    /// No worker is to inherit what the program was to have.
    fn keep_back(&self) {
        for &descriptor in &self.descriptors {
            // One that is not open is not inherited.
            let _ = set_inherited(descriptor, false);
        }
    }
}

/// Whether programs that are run from now on inherit a descriptor.
pub(crate) fn set_inherited(descriptor: RawFd, is_inherited: bool) -> io::Result<()> {
    let flags = if is_inherited { 0 } else { libc::FD_CLOEXEC };
    // SAFETY: changes a flag of a descriptor, and fails for what is none.
    match unsafe { libc::fcntl(descriptor, libc::F_SETFD, flags) } {
        0 => Ok(()),
        _ => Err(io::Error::last_os_error()),
    }
}

#[cfg(test)]
mod tests {
    use std::os::fd::AsRawFd;

    use super::*;

    fn is_inherited(descriptor: RawFd) -> bool {
        // SAFETY: asks for a flag of a descriptor.
        let flags = unsafe { libc::fcntl(descriptor, libc::F_GETFD) };
        flags & libc::FD_CLOEXEC == 0
    }

    #[test]
    fn a_program_that_cannot_be_run_changes_nothing() {
        let file = std::fs::File::open("/dev/null").unwrap();
        let none: [&str; 0] = [];
        let image =
            |descriptors| Image::new(Path::new("/nonexistent/program"), none.iter(), descriptors).unwrap();
        let error = image(vec![file.as_raw_fd()]).run();
        assert_eq!(error.kind(), io::ErrorKind::NotFound);
        assert!(!is_inherited(file.as_raw_fd()));
        let error = image(vec![file.as_raw_fd(), 1 << 20]).run();
        assert_eq!(error.raw_os_error(), Some(libc::EBADF));
        assert!(!is_inherited(file.as_raw_fd()));
    }
}
