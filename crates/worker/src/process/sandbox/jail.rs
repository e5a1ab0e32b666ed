//! Namespaces of the worker's own, an empty file system, a user of its own and no capabilities:
//! what the kernel lets this process have of them.
//!
//! | | with root | without |
//! |---|---|---|
//! | user and group | [`USER`], which no other process has | the node's |
//! | mount, network, IPC, UTS, cgroup namespaces | new | new, with a user namespace |
//! | user namespace | new | new |
//! | PID namespace | new (made by the node, which starts the worker in it) | the node's |
//! | root of the file system | empty, but for the image cache | the same |
//! | capabilities | none, also in the bounding set | none |
//!
//! Where the kernel forbids namespaces to ordinary users and the node is not root's, Landlock and
//! the filter of system calls remain. Nothing here is an error: [`Jail`] says what there is.

use std::ffi::CString;
use std::fs::{self, File, OpenOptions, Permissions};
use std::io::{self, Write};
use std::os::fd::{AsRawFd, OwnedFd};
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::{DirBuilderExt, MetadataExt, OpenOptionsExt, PermissionsExt, fchown};
use std::path::Path;
use std::ptr::null;

use libc::{c_int, c_ulong};
use serde::{Deserialize, Serialize};

/// The user and the group of workers whose node runs as root. Linux distributions give numbers of
/// this range to no account (systemd, "Users, Groups, UIDs and GIDs on systemd Systems": unused
/// below 524288).
pub const USER: u32 = 275_830;

/// What a worker has of a jail.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Jail {
    /// It is not the node's user.
    pub own_user: bool,
    pub user_namespace: bool,
    pub pid_namespace: bool,
    /// Mounts, network, IPC, host name and cgroups.
    pub other_namespaces: bool,
    /// No file but those of the image cache has a name.
    pub empty_root: bool,
    pub no_capabilities: bool,
}

/// All namespaces but those of users and of process numbers.
const NAMESPACES: c_int =
    libc::CLONE_NEWNS | libc::CLONE_NEWNET | libc::CLONE_NEWIPC | libc::CLONE_NEWUTS | libc::CLONE_NEWCGROUP;

/// Enters it; the calling thread is the process's only one. With it comes the folder of the image
/// cache, if there is one.
pub(super) fn enter(cache: Option<&Path>) -> (Jail, Option<OwnedFd>) {
    // SAFETY: asks for a number.
    let is_root = unsafe { libc::geteuid() } == 0;
    let folder = cache.and_then(|folder| prepare(folder, is_root));
    let mut jail = Jail { pid_namespace: std::process::id() == 1, ..Jail::default() };
    if is_root {
        jail.other_namespaces = unshare(NAMESPACES);
    } else {
        jail.user_namespace = unshare(libc::CLONE_NEWUSER | NAMESPACES);
        jail.other_namespaces = jail.user_namespace;
        if jail.user_namespace {
            // Without it files of this user would have no owner.
            let _ = map_own_user();
        }
    }
    jail.empty_root = jail.other_namespaces && empty_root(cache.zip(folder.as_ref())).is_ok();
    let folder =
        folder.and_then(|folder| if jail.empty_root { File::open(CACHE).ok() } else { Some(folder) });
    drop_bounding_set();
    if is_root {
        jail.own_user = become_own_user().is_ok();
        jail.user_namespace = unshare(libc::CLONE_NEWUSER);
        // A new user namespace begins with all of them.
        drop_bounding_set();
    }
    jail.no_capabilities = drop_capabilities().is_ok();
    (jail, folder.map(OwnedFd::from))
}

/// Makes the folder of the cache, for workers alone, and opens it. Nothing for a link, and for the
/// folder of another user, who may have put there what would be executed.
fn prepare(folder: &Path, is_root: bool) -> Option<File> {
    // A folder that cannot be made cannot be opened either.
    let _ = fs::DirBuilder::new().recursive(true).mode(0o700).create(folder);
    let flags = libc::O_DIRECTORY | libc::O_NOFOLLOW;
    let folder = OpenOptions::new().read(true).custom_flags(flags).open(folder).ok()?;
    let owner = folder.metadata().ok()?.uid();
    // SAFETY: asks for a number.
    let is_ours = owner == unsafe { libc::geteuid() } || (is_root && owner == USER);
    if !is_ours {
        return None;
    }
    if is_root {
        let _ = fchown(&folder, Some(USER), Some(USER));
    }
    folder.set_permissions(Permissions::from_mode(0o700)).ok()?;
    Some(folder)
}

fn unshare(namespaces: c_int) -> bool {
    // SAFETY: plain numbers; the process has one thread, and no pointer depends on a namespace.
    unsafe { libc::unshare(namespaces) == 0 }
}

/// The user has the same number inside the new namespace (user_namespaces(7)).
fn map_own_user() -> io::Result<()> {
    // SAFETY: asks for numbers.
    let (user, group) = unsafe { (libc::geteuid(), libc::getegid()) };
    let write = |file: &str, text: String| {
        OpenOptions::new().write(true).open(format!("/proc/self/{file}"))?.write_all(text.as_bytes())
    };
    // The system gives these numbers before, in the node's namespace, where they are the same.
    write("setgroups", "deny".into())?;
    write("uid_map", format!("{user} {user} 1"))?;
    write("gid_map", format!("{group} {group} 1"))
}

/// Where the cache is in the empty root.
const CACHE: &str = "/cache";

/// Opens a folder by its path once more. An error where another one has taken its place.
fn open_again(path: &Path, opened: &File) -> io::Result<File> {
    let again = OpenOptions::new().read(true).custom_flags(libc::O_PATH | libc::O_NOFOLLOW).open(path)?;
    let identity = |file: &File| file.metadata().map(|metadata| (metadata.dev(), metadata.ino()));
    if identity(&again)? == identity(opened)? { Ok(again) } else { Err(io::ErrorKind::NotFound.into()) }
}

/// Makes an empty file system the root, with the folder of the cache in it.
fn empty_root(cache: Option<(&Path, &File)>) -> io::Result<()> {
    let (own, options) =
        (libc::MS_NOSUID | libc::MS_NODEV | libc::MS_NOEXEC, "size=64k,nr_inodes=8,mode=0755");
    mount(None, Path::new("/"), None, libc::MS_REC | libc::MS_PRIVATE, "")?;
    // Opened in this mount namespace, and before its path may be covered.
    let folder = cache.map(|(path, opened)| open_again(path, opened)).transpose()?;
    let place = ["/tmp", "/var/tmp", "/run", "/mnt"].map(Path::new).into_iter().find(|path| path.is_dir());
    let place = place.ok_or(io::ErrorKind::NotFound)?;
    mount(Some(Path::new("tmpfs")), place, Some("tmpfs"), own, options)?;
    if let Some(folder) = folder {
        let inside = place.join("cache");
        fs::create_dir(&inside)?;
        let outside = format!("/proc/self/fd/{}", folder.as_raw_fd());
        mount(Some(Path::new(&outside)), &inside, None, libc::MS_BIND, "")?;
        // Some flags of the file system below cannot be changed in a user namespace.
        let _ = mount(None, &inside, None, libc::MS_REMOUNT | libc::MS_BIND | own, "");
    }
    std::env::set_current_dir(place)?;
    // The new root is put over the old one, which then is what lies at `.` and goes (pivot_root(2),
    // "pivot_root(".", ".")"). SAFETY: two texts that end with a NUL.
    check(unsafe { libc::syscall(libc::SYS_pivot_root, c".".as_ptr(), c".".as_ptr()) } as c_int)?;
    // SAFETY: a text that ends with a NUL.
    check(unsafe { libc::umount2(c".".as_ptr(), libc::MNT_DETACH) })?;
    std::env::set_current_dir("/")?;
    mount(None, Path::new("/"), None, libc::MS_REMOUNT | libc::MS_BIND | libc::MS_RDONLY | own, "")
}

fn mount(from: Option<&Path>, to: &Path, kind: Option<&str>, flags: c_ulong, data: &str) -> io::Result<()> {
    let text = |bytes: &[u8]| CString::new(bytes).map_err(|_| io::Error::from(io::ErrorKind::InvalidInput));
    let from = from.map(|from| text(from.as_os_str().as_bytes())).transpose()?;
    let (to, data) = (text(to.as_os_str().as_bytes())?, text(data.as_bytes())?);
    let kind = kind.map(|kind| text(kind.as_bytes())).transpose()?;
    let start = |text: &Option<CString>| text.as_ref().map_or(null(), |text| text.as_ptr());
    // SAFETY: texts that end with a NUL, or null where one may be left out.
    check(unsafe { libc::mount(start(&from), to.as_ptr(), start(&kind), flags, data.as_ptr().cast()) })
}

/// Gives root's user, group and further groups up, for good.
fn become_own_user() -> io::Result<()> {
    // SAFETY: no groups, and plain numbers.
    unsafe {
        check(libc::setgroups(0, null()))?;
        check(libc::setresgid(USER, USER, USER))?;
        check(libc::setresuid(USER, USER, USER))
    }
}

/// No program that this process might start could get a capability back.
fn drop_bounding_set() {
    for capability in 0..=CAPABILITY_MAX {
        // SAFETY: plain numbers. What the kernel does not know, or this process may not drop, it
        // cannot use either.
        unsafe { libc::prctl(libc::PR_CAPBSET_DROP, capability, 0, 0, 0) };
    }
}

/// The last number that a capability can have in the two words of the kernel's interface.
const CAPABILITY_MAX: c_ulong = 63;

/// The kernel's interface to capabilities (capset(2)).
#[repr(C)]
struct CapabilityHeader {
    version: u32,
    pid: c_int,
}
/// `_LINUX_CAPABILITY_VERSION_3`: two words of each set.
const CAPABILITY_VERSION: u32 = 0x2008_0522;

fn drop_capabilities() -> io::Result<()> {
    // SAFETY: plain numbers; no ambient capability is left.
    unsafe { libc::prctl(libc::PR_CAP_AMBIENT, libc::PR_CAP_AMBIENT_CLEAR_ALL, 0, 0, 0) };
    let header = CapabilityHeader { version: CAPABILITY_VERSION, pid: 0 };
    // Effective, permitted and inheritable, twice.
    let none = [[0_u32; 3]; 2];
    // SAFETY: the call reads a header and two records.
    check(unsafe { libc::syscall(libc::SYS_capset, &raw const header, none.as_ptr()) } as c_int)
}

fn check(status: c_int) -> io::Result<()> {
    if status == 0 { Ok(()) } else { Err(io::Error::last_os_error()) }
}
