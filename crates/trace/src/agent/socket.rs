//! The listening socket, and what std does not offer of Unix sockets: peer credentials and
//! descriptors that come with a message.

use super::InitError;
use owlet_sys::runtime_dir::{self, SocketName};
use std::io;
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd, RawFd};
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::{Path, PathBuf};

/// Copies of this crate in one process that can have an agent each.
const INSTANCES: u32 = 64;

/// A bound socket and its file.
#[derive(Debug)]
pub(super) struct Listener {
    pub(super) socket: UnixListener,
    pub(super) path: PathBuf,
    pub(super) cookie: u64,
    /// The root directory its path is seen from, see [`root`].
    root: Option<(u64, u64)>,
}

impl Listener {
    /// Whether the descriptor is still this socket.
    pub(super) fn is_ours(&self) -> bool {
        cookie(&self.socket) == self.cookie
    }
}

/// The root directory of this process, which `chroot` changes.
fn root() -> Option<(u64, u64)> {
    use std::os::unix::fs::MetadataExt;
    std::fs::metadata("/").ok().map(|root| (root.dev(), root.ino()))
}

/// Binds the socket anew, after its file has been removed. A file that is merely out of sight since a
/// `chroot` is not replaced.
pub(super) fn listen_anew(old: &Listener) -> Option<Listener> {
    let path = old.path.clone();
    let root = root().filter(|root| Some(*root) == old.root)?;
    runtime_dir::prepare(path.parent()?).ok()?;
    let socket = bind(&path).ok()?;
    let cookie = cookie(&socket);
    Some(Listener { socket, path, cookie, root: Some(root) })
}

/// Binds a socket of this process's own in the user's directory.
pub(super) fn listen(dir: &Path) -> Result<Listener, InitError> {
    let failed = |errno| InitError::Socket { path: dir.to_string_lossy().into_owned(), errno };
    runtime_dir::prepare(dir).map_err(|error| failed(error.errno))?;
    let mut last = libc::EADDRINUSE;
    for instance in 0..INSTANCES {
        let path = dir.join(SocketName::own(instance).to_string());
        match bind(&path) {
            Ok(socket) => {
                let cookie = cookie(&socket);
                return Ok(Listener { socket, path, cookie, root: root() });
            }
            Err(error) => last = error.raw_os_error().unwrap_or(libc::ENAMETOOLONG),
        }
        if last != libc::EADDRINUSE {
            break;
        }
    }
    Err(failed(last))
}

fn bind(path: &Path) -> io::Result<UnixListener> {
    let bound = UnixListener::bind(path).or_else(|error| {
        // A file of our own name without a listener: an earlier program of this process, before exec.
        if error.kind() == io::ErrorKind::AddrInUse && is_refused(path) {
            std::fs::remove_file(path)?;
            return UnixListener::bind(path);
        }
        Err(error)
    })?;
    bound.set_nonblocking(true)?;
    Ok(bound)
}

fn is_refused(path: &Path) -> bool {
    connect(path).is_err_and(|error| error.kind() == io::ErrorKind::ConnectionRefused)
}

/// Removes sockets of processes that are gone.
pub(super) fn clean(dir: &Path) {
    let Ok(found) = runtime_dir::list(dir) else { return };
    for (name, path) in found {
        if name.is_stale() {
            let _ = std::fs::remove_file(path);
        }
    }
}

/// Connects without waiting: `WouldBlock` when the other side accepts nobody at the moment.
pub(super) fn connect(path: &Path) -> io::Result<UnixStream> {
    use std::os::unix::ffi::OsStrExt;
    // SAFETY: zero is a valid value of every field.
    let mut address: libc::sockaddr_un = unsafe { core::mem::zeroed() };
    address.sun_family = libc::AF_UNIX as libc::sa_family_t;
    let bytes = path.as_os_str().as_bytes();
    if bytes.len() >= address.sun_path.len() {
        return Err(io::ErrorKind::InvalidInput.into());
    }
    for (to, from) in address.sun_path.iter_mut().zip(bytes) {
        *to = libc::c_char::from_ne_bytes([*from]);
    }
    let kind = libc::SOCK_STREAM | libc::SOCK_CLOEXEC | libc::SOCK_NONBLOCK;
    // SAFETY: no memory is passed.
    let fd = unsafe { libc::socket(libc::AF_UNIX, kind, 0) };
    if fd < 0 {
        return Err(io::Error::last_os_error());
    }
    // SAFETY: the descriptor is new and ours.
    let stream = unsafe { UnixStream::from_raw_fd(fd) };
    let len = size_of::<libc::sockaddr_un>() as libc::socklen_t;
    // SAFETY: the address is a whole `sockaddr_un`, its path ended by a zero.
    match unsafe { libc::connect(stream.as_raw_fd(), (&raw const address).cast(), len) } {
        0 => Ok(stream),
        _ => Err(io::Error::last_os_error()),
    }
}

/// Whether the peer is our user or root.
pub(super) fn is_allowed(stream: &UnixStream) -> bool {
    let mut credentials = libc::ucred { pid: 0, uid: u32::MAX, gid: u32::MAX };
    let mut len = size_of::<libc::ucred>() as libc::socklen_t;
    // SAFETY: the buffer is a whole `ucred`, and `len` says so.
    let got = unsafe {
        libc::getsockopt(
            stream.as_raw_fd(),
            libc::SOL_SOCKET,
            libc::SO_PEERCRED,
            (&raw mut credentials).cast(),
            &raw mut len,
        )
    };
    got == 0 && (credentials.uid == owlet_sys::process::geteuid() || credentials.uid == 0)
}

/// A number that no other socket of this boot has; 0 when the descriptor is no socket.
///
/// Programs that daemonize close every descriptor they can think of, ours included, and the numbers
/// come back as theirs. A descriptor is used, and closed, only while it is still this socket.
pub(super) fn cookie(socket: &impl AsRawFd) -> u64 {
    let mut cookie = 0u64;
    let mut len = size_of::<u64>() as libc::socklen_t;
    // SAFETY: the buffer is a whole `u64`, and `len` says so.
    let got = unsafe {
        libc::getsockopt(
            socket.as_raw_fd(),
            libc::SOL_SOCKET,
            libc::SO_COOKIE,
            (&raw mut cookie).cast(),
            &raw mut len,
        )
    };
    if got == 0 { cookie } else { 0 }
}

/// Descriptors that may come with one read; the kernel closes what does not fit.
const FDS: usize = 4;

/// Receives bytes, and the descriptors that come with them, close-on-exec. `cut` tells that some were
/// left out: this process has no room for them.
pub(super) fn receive(
    stream: &UnixStream,
    buf: &mut [u8],
    fds: &mut Vec<OwnedFd>,
    cut: &mut bool,
) -> io::Result<usize> {
    // Of u64 for the alignment of `cmsghdr`; room for one header and FDS descriptors.
    let mut space = [0u64; 8];
    let mut part = libc::iovec { iov_base: buf.as_mut_ptr().cast(), iov_len: buf.len() };
    // SAFETY: zero is a valid value of every field.
    let mut message: libc::msghdr = unsafe { core::mem::zeroed() };
    message.msg_iov = &raw mut part;
    message.msg_iovlen = 1;
    message.msg_control = space.as_mut_ptr().cast();
    message.msg_controllen = size_of_val(&space) as _;
    let flags = libc::MSG_CMSG_CLOEXEC | libc::MSG_DONTWAIT;
    // SAFETY: `message` describes `buf` and `space`, which outlive the call.
    let got = unsafe { libc::recvmsg(stream.as_raw_fd(), &raw mut message, flags) };
    if got < 0 {
        return Err(io::Error::last_os_error());
    }
    take_fds(&message, fds);
    *cut |= message.msg_flags & libc::MSG_CTRUNC != 0;
    Ok(got.cast_unsigned())
}

fn take_fds(message: &libc::msghdr, fds: &mut Vec<OwnedFd>) {
    // SAFETY: the kernel filled `message`; the macro looks at its two control fields only.
    let mut header = unsafe { libc::CMSG_FIRSTHDR(message) };
    while !header.is_null() {
        // SAFETY: FIRSTHDR and NXTHDR return headers that lie in the control buffer, aligned.
        let found = unsafe { *header };
        if found.cmsg_level == libc::SOL_SOCKET && found.cmsg_type == libc::SCM_RIGHTS {
            // SAFETY: as above; the data lies behind the header.
            let data = unsafe { libc::CMSG_DATA(header) }.cast::<RawFd>();
            // SAFETY: computes a number.
            let empty = unsafe { libc::CMSG_LEN(0) } as usize;
            let count = (found.cmsg_len as usize).saturating_sub(empty) / size_of::<RawFd>();
            for at in 0..count.min(2 * FDS) {
                // SAFETY: the kernel wrote `count` descriptors there, in the buffer.
                let fd = unsafe { data.wrapping_add(at).read_unaligned() };
                // SAFETY: received descriptors are new and ours.
                fds.push(unsafe { OwnedFd::from_raw_fd(fd) });
            }
        }
        // SAFETY: `header` came from the same message.
        header = unsafe { libc::CMSG_NXTHDR(message, header) };
    }
}
