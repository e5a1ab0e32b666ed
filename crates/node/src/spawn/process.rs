//! The process of a worker, a child of this one: started here, or by the program that this process
//! ran before an upgrade.

use std::io::{self, Read};
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::os::unix::process::ExitStatusExt;
use std::process::{Child, ExitStatus};

/// A child that is waited for at most once. Dropped, it is left as it is.
#[derive(Debug)]
pub(crate) struct WorkerProcess {
    pid: u32,
    /// Once it was waited for, its number may be another process's.
    ended: Option<ExitStatus>,
    /// What it writes to standard error comes here.
    errors: Option<OwnedFd>,
}

impl WorkerProcess {
    /// A child of the program before this one.
    pub(crate) fn taken_over(pid: u32, errors: Option<OwnedFd>) -> WorkerProcess {
        WorkerProcess { pid, ended: None, errors }
    }

    pub(crate) fn id(&self) -> u32 {
        self.pid
    }

    /// The end of its standard error that is read, for the program after this one.
    pub(crate) fn errors(&self) -> Option<BorrowedFd<'_>> {
        self.errors.as_ref().map(AsFd::as_fd)
    }

    /// That end as something to read from.
    pub(crate) fn reader(&self) -> io::Result<Option<impl Read + Send + use<>>> {
        self.errors.as_ref().map(|errors| errors.try_clone().map(std::fs::File::from)).transpose()
    }

    pub(crate) fn kill(&mut self) -> io::Result<()> {
        if self.ended.is_some() {
            return Ok(());
        }
        // SAFETY: plain numbers; until the child was waited for, the number is its own.
        match unsafe { libc::kill(self.pid as libc::pid_t, libc::SIGKILL) } {
            0 => Ok(()),
            _ => Err(io::Error::last_os_error()),
        }
    }

    /// Waits for its end.
    pub(crate) fn wait(&mut self) -> io::Result<ExitStatus> {
        if let Some(status) = self.ended {
            return Ok(status);
        }
        let mut status = 0;
        loop {
            // SAFETY: `status` outlives the call, which writes to nothing else.
            if unsafe { libc::waitpid(self.pid as libc::pid_t, &mut status, 0) } >= 0 {
                break;
            }
            let error = io::Error::last_os_error();
            if error.kind() != io::ErrorKind::Interrupted {
                return Err(error);
            }
        }
        let status = ExitStatus::from_raw(status);
        self.ended = Some(status);
        Ok(status)
    }
}

impl From<Child> for WorkerProcess {
    fn from(mut child: Child) -> WorkerProcess {
        let errors = child.stderr.take().map(OwnedFd::from);
        WorkerProcess { pid: child.id(), ended: None, errors }
    }
}

#[cfg(test)]
mod tests {
    use std::process::{Command, Stdio};

    use super::*;

    #[test]
    fn a_child_is_waited_for_once_and_read_from() {
        let mut command = Command::new("/bin/sh");
        command.args(["-c", "echo wrong >&2; exec sleep 1000"]).stderr(Stdio::piped());
        let child = WorkerProcess::from(command.spawn().unwrap());
        let mut line = [0; 6];
        child.reader().unwrap().unwrap().read_exact(&mut line).unwrap();
        assert_eq!(&line, b"wrong\n");
        let mut taken = WorkerProcess::taken_over(child.id(), None);
        taken.kill().unwrap();
        assert_eq!(taken.wait().unwrap().signal(), Some(libc::SIGKILL));
        assert_eq!(taken.wait().unwrap().signal(), Some(libc::SIGKILL), "from memory");
        assert!(taken.kill().is_ok(), "its number is free, or of another process");
    }
}
