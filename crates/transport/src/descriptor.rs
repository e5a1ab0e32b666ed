//! Passing a descriptor over a Unix socket (`SCM_RIGHTS`, unix(7)).

use std::io;
use std::mem::MaybeUninit;
use std::os::fd::{AsRawFd, BorrowedFd, FromRawFd, OwnedFd, RawFd};

use crate::socket::retried;

/// Room for the header of a control message and one descriptor, aligned as the header is.
#[repr(C)]
union Control {
    bytes: [u8; 64],
    _aligned: libc::cmsghdr,
}

/// Sends a beginning of `bytes` with a descriptor beside it.
pub(crate) fn send(socket: BorrowedFd<'_>, bytes: &[u8], fd: BorrowedFd<'_>) -> io::Result<usize> {
    let mut control = Control { bytes: [0; 64] };
    let mut part = libc::iovec { iov_base: bytes.as_ptr().cast_mut().cast(), iov_len: bytes.len() };
    let mut message = message(&mut part, &mut control);
    let size = size_of::<RawFd>() as u32;
    // SAFETY: CMSG_SPACE computes from a constant.
    message.msg_controllen = unsafe { libc::CMSG_SPACE(size) } as _;
    // SAFETY: the control area has room for a header and a descriptor, so the first header is
    // within it, and its data hold an int, for which `write_unaligned` asks no alignment.
    unsafe {
        let header = libc::CMSG_FIRSTHDR(&message);
        (*header).cmsg_level = libc::SOL_SOCKET;
        (*header).cmsg_type = libc::SCM_RIGHTS;
        (*header).cmsg_len = libc::CMSG_LEN(size) as _;
        libc::CMSG_DATA(header).cast::<RawFd>().write_unaligned(fd.as_raw_fd());
    }
    // SAFETY: the message describes locals and `bytes`, which outlive the call; the kernel only
    // reads them.
    retried(|| unsafe { libc::sendmsg(socket.as_raw_fd(), &message, libc::MSG_NOSIGNAL) })
}

/// Receives what is there, and the first descriptor beside it, without waiting.
pub(crate) fn receive(socket: BorrowedFd<'_>, into: &mut [u8]) -> io::Result<(usize, Option<OwnedFd>)> {
    let mut control = Control { bytes: [0; 64] };
    let mut part = libc::iovec { iov_base: into.as_mut_ptr().cast(), iov_len: into.len() };
    let mut message = message(&mut part, &mut control);
    // SAFETY: CMSG_SPACE computes from a constant. No more than one descriptor fits, and the kernel
    // closes others.
    message.msg_controllen = unsafe { libc::CMSG_SPACE(size_of::<RawFd>() as u32) } as _;
    let flags = libc::MSG_DONTWAIT | libc::MSG_CMSG_CLOEXEC;
    // SAFETY: the message describes locals and `into`, which outlive the call, by their own sizes.
    let count = retried(|| unsafe { libc::recvmsg(socket.as_raw_fd(), &mut message, flags) })?;
    // SAFETY: the kernel has set the length of the control area, within which CMSG_FIRSTHDR
    // answers; a message of this kind holds a descriptor that is now this process's, and no other
    // code has it.
    let fd = unsafe {
        let header = libc::CMSG_FIRSTHDR(&message);
        let has_fd = !header.is_null()
            && (*header).cmsg_level == libc::SOL_SOCKET
            && (*header).cmsg_type == libc::SCM_RIGHTS
            && (*header).cmsg_len as usize >= libc::CMSG_LEN(size_of::<RawFd>() as u32) as usize;
        has_fd.then(|| OwnedFd::from_raw_fd(libc::CMSG_DATA(header).cast::<RawFd>().read_unaligned()))
    };
    Ok((count, fd))
}

/// A message of one part with a control area; the pointers are to the arguments.
fn message(part: &mut libc::iovec, control: &mut Control) -> libc::msghdr {
    // SAFETY: an all-zero message header is a valid one.
    let mut message: libc::msghdr = unsafe { MaybeUninit::zeroed().assume_init() };
    message.msg_iov = part;
    message.msg_iovlen = 1;
    message.msg_control = (&raw mut *control).cast();
    message
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::io::Read;
    use std::os::fd::AsFd;
    use std::os::unix::net::UnixStream;

    #[test]
    fn a_descriptor_arrives_with_its_bytes() {
        let (a, b) = UnixStream::pair().unwrap();
        let (mut end, other_end) = UnixStream::pair().unwrap();
        assert_eq!(send(a.as_fd(), b"here", other_end.as_fd()).unwrap(), 4);
        drop(other_end);
        let mut into = [0; 16];
        let (count, fd) = receive(b.as_fd(), &mut into).unwrap();
        assert_eq!(&into[..count], b"here");
        // It is the other end: when it closes, this one sees it.
        drop(fd.unwrap());
        assert_eq!(end.read(&mut into).unwrap(), 0);
    }

    #[test]
    fn bytes_without_a_descriptor_are_bytes() {
        let (a, b) = UnixStream::pair().unwrap();
        let mut into = [0; 16];
        assert_eq!(receive(b.as_fd(), &mut into).unwrap_err().kind(), io::ErrorKind::WouldBlock);
        crate::Stream::from(a).write(b"here").unwrap();
        let (count, fd) = receive(b.as_fd(), &mut into).unwrap();
        assert_eq!((count, fd.is_none()), (4, true));
    }
}
