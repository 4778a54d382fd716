//! Putting the programs on the sites, and taking what they record.
//!
//! | step | how |
//! |---|---|
//! | maps | the ring, one loss counter a CPU, the operands of USDT sites |
//! | programs | one for each kind of site that occurs |
//! | links | one `uprobe.multi` for each file and kind; where the kernel has none, one perf event a site |
//! | detach | the descriptors are closed, by us or, however we end, by the kernel |
//!
//! A link is all or nothing. When the kernel refuses one for an instruction it cannot probe, the sites are
//! halved until those it refuses are found; they are named and left out.

use crate::bpf::{self, Mapping, Sites, Way};
use crate::elf;
use crate::error::{Error, ErrorKind, Result};
use crate::hit::Hit;
use crate::order::Order;
use crate::process;
use crate::program::{self, Kind, Maps, OPERANDS};
use crate::ring::Ring;
use crate::sites::{Found, Of, Scope, Site};
use crate::usdt::Place;
use owlet_percpu::atomic::{AtomicU64, Ordering};
use std::ffi::CString;
use std::io;
use std::os::fd::{AsFd as _, AsRawFd as _, BorrowedFd, FromRawFd as _, OwnedFd};
use std::os::unix::ffi::OsStrExt as _;

/// Marks the return of a function in a cookie; the site's number is the rest.
pub(crate) const RETURN: u64 = 1 << 32;
/// The kernel takes that many sites in one link (`MAX_UPROBE_MULTI_CNT`).
const SITES_MAX: usize = 1 << 20;

/// What of a function is wanted.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Moments {
    /// When it is entered.
    Entry,
    /// When it returns.
    Exit,
    /// Both, as two events.
    Both,
    /// Both, as a span with its duration.
    Latency,
}

impl Moments {
    fn entry(self) -> bool {
        self != Self::Exit
    }

    fn exit(self) -> bool {
        self != Self::Entry
    }
}

/// How to attach.
#[derive(Clone, Copy, Debug)]
pub struct Options {
    /// Whom.
    pub scope: Scope,
    /// What of functions; a USDT probe is one moment.
    pub moments: Moments,
    /// Bytes of the ring, rounded up to a power of two of at least a page.
    pub ring_bytes: u64,
    /// By which way; `None` for the best that the kernel has.
    pub way: Option<Way>,
    /// Watch returns even of code that unwinds.
    pub allow_abort: bool,
}

/// A site that the kernel refuses.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Refused {
    /// Which of [`Found::sites`].
    pub site: usize,
    /// Why.
    pub why: String,
}

/// Attached sites. Detached when dropped, and by the kernel when this process ends.
#[derive(Debug)]
pub struct Attachment {
    way: Way,
    refused: Vec<Refused>,
    attached: usize,
    since: u64,
    /// Links before events: what they are on.
    links: Vec<OwnedFd>,
    events: Vec<OwnedFd>,
    programs: Vec<(Kind, OwnedFd)>,
    lost: Mapping,
    ring: Ring,
    order: Order<Hit>,
    // Held: programs refer to it.
    _maps: Vec<OwnedFd>,
    wake: OwnedFd,
}

impl Attachment {
    /// Attaches all sites that were found.
    ///
    /// # Errors
    /// [`ErrorKind::Permission`]; [`ErrorKind::Unsupported`] by this kernel; [`ErrorKind::NoProcess`];
    /// [`ErrorKind::Dangerous`] when returns are wanted of code that unwinds and
    /// [`Options::allow_abort`] is not set; when the kernel refuses every site.
    pub fn new(found: &Found, options: &Options) -> Result<Self> {
        if found.sites.len() > SITES_MAX {
            let n = found.sites.len();
            let what = format!("{n} sites are more than the kernel takes, {SITES_MAX}");
            return Err(
                Error::new(ErrorKind::Unsupported, what).hint("choose fewer by the pattern")
            );
        }
        if options.moments.exit() && !options.allow_abort {
            is_safe(found, options.scope)?;
        }
        let ring_bytes = ring_bytes(options.ring_bytes)?;
        let failed = |what: &str, error: io::Error| refusal(what, &error);
        let made = |what: &'static str| move |error: io::Error| refusal(what, &error);
        let ring_map = bpf::ring(ring_bytes).map_err(made("make a BPF ring buffer"))?;
        let cpus = u32::try_from(owlet_percpu::cpus()).unwrap_or(1);
        let lost_map = bpf::array(8, cpus, true).map_err(made("make a BPF map"))?;
        let operands_map = operands(&found.sites).map_err(made("make a BPF map"))?;
        let page = owlet_sys::memory::page_size();
        let lost_bytes = (cpus as usize * 8).next_multiple_of(page);
        let lost =
            Mapping::new(lost_map.as_fd(), 0, lost_bytes, false).map_err(made("map a BPF map"))?;
        let ring = Ring::new(ring_map.as_fd(), ring_bytes as usize)
            .map_err(made("map the BPF ring buffer"))?;
        let wake = wake(ring_map.as_fd()).map_err(|error| failed("wait for the ring", error))?;
        let maps = Maps {
            ring: ring_map.as_fd(),
            lost: lost_map.as_fd(),
            operands: operands_map.as_fd(),
            wake_at: ring_bytes / 4,
        };
        let namespace = match options.scope {
            Scope::Process(pid) => process::namespace(pid),
            Scope::Everyone => process::namespace(std::process::id()),
        };
        let way = options.way.unwrap_or_else(|| best_way(&maps));
        let mut programs = Vec::new();
        for kind in kinds(found, options.moments) {
            let code = program::assemble(kind, &maps, namespace);
            let name = match kind {
                Kind::Entry => c"owlet_entry",
                Kind::Return => c"owlet_return",
                Kind::Usdt => c"owlet_usdt",
            };
            programs.push((kind, bpf::load(name, &code, way).map_err(made("load a BPF program"))?));
        }
        let maps = vec![ring_map, lost_map, operands_map];
        let (links, events, refused) = (Vec::new(), Vec::new(), Vec::new());
        let order = Order::new();
        let mut this = Self {
            way,
            refused,
            attached: 0,
            since: 0,
            links,
            events,
            programs,
            lost,
            ring,
            order,
            _maps: maps,
            wake,
        };
        this.attach(found, options)?;
        this.since = owlet_sys::clock::monotonic_ns();
        Ok(this)
    }

    fn attach(&mut self, found: &Found, options: &Options) -> Result<()> {
        let programs = std::mem::take(&mut self.programs);
        for (kind, program) in &programs {
            for file in 0..found.files.len() {
                let ours = |(_, site): &(usize, &Site)| {
                    site.file == file && (site.of != Of::Function) == (*kind == Kind::Usdt)
                };
                let sites: Vec<_> =
                    found.sites.iter().enumerate().filter(ours).map(|(at, _)| at).collect();
                let job = Job { found, options, kind: *kind, program: program.as_fd(), file };
                self.attach_file(&job, &sites)?;
            }
        }
        self.programs = programs;
        let refused = |site: usize| self.refused.iter().any(|refused| refused.site == site);
        self.attached = (0..found.sites.len()).filter(|&site| !refused(site)).count();
        match self.refused.first() {
            Some(first) if self.attached == 0 => {
                let name = found.sites.get(first.site).map_or("", |site| site.name.as_str());
                let what = format!("the kernel refuses every site, {name} first: {}", first.why);
                Err(Error::new(ErrorKind::Unsupported, what))
            }
            _ => Ok(()),
        }
    }

    /// Sites of one file and kind.
    fn attach_file(&mut self, job: &Job<'_>, sites: &[usize]) -> Result<()> {
        if sites.is_empty() {
            return Ok(());
        }
        let failed = |error: &io::Error| refusal(&format!("probe {}", job.path_shown()), error);
        if self.way == Way::Perf {
            return self.attach_singly(job, sites);
        }
        let error = match job.link(sites) {
            Ok(link) => {
                self.links.push(link);
                return Ok(());
            }
            Err(error) => error,
        };
        if !is_about_a_site(&error) {
            return Err(failed(&error));
        }
        let before = self.refused.len();
        self.refused.extend(job.halve(sites, &error).map_err(|error| failed(&error))?);
        let new = self.refused.get(before..).unwrap_or_default();
        let refused = |site: &usize| new.iter().any(|refused| refused.site == *site);
        let rest: Vec<_> = sites.iter().copied().filter(|site| !refused(site)).collect();
        if !rest.is_empty() {
            self.links.push(job.link(&rest).map_err(|error| failed(&error))?);
        }
        Ok(())
    }

    fn attach_singly(&mut self, job: &Job<'_>, sites: &[usize]) -> Result<()> {
        let failed = |error: &io::Error| refusal(&format!("probe {}", job.path_shown()), error);
        let kind = bpf::uprobe_kind().map_err(|error| failed(&error))?;
        more_descriptors(2 * sites.len());
        for &site in sites {
            match job.event(site, kind) {
                Ok((event, link)) => {
                    self.events.push(event);
                    self.links.push(link);
                }
                Err(error) if is_about_a_site(&error) => {
                    self.refused.push(Refused { site, why: why(&error) });
                }
                Err(error) => return Err(failed(&error)),
            }
        }
        Ok(())
    }

    /// By which way.
    #[must_use]
    pub fn way(&self) -> Way {
        self.way
    }

    /// Sites that the kernel has refused.
    #[must_use]
    pub fn refused(&self) -> &[Refused] {
        &self.refused
    }

    /// Sites that are on.
    #[must_use]
    pub fn attached(&self) -> usize {
        self.attached
    }

    /// When all were on, in nanoseconds of `CLOCK_MONOTONIC`.
    #[must_use]
    pub fn since(&self) -> u64 {
        self.since
    }

    /// Readable when the ring has filled to a quarter; [`read`](Self::read) makes it unreadable again.
    #[must_use]
    pub fn wake_fd(&self) -> BorrowedFd<'_> {
        self.wake.as_fd()
    }

    /// Appends to `out`, in the order of time, hits that nothing earlier can follow any more: all but
    /// those of the last moments.
    pub fn read(&mut self, out: &mut Vec<Hit>) {
        rearm(self.wake.as_fd());
        let Self { ring, order, .. } = self;
        order.begin(|| {
            let now = owlet_sys::clock::monotonic_ns();
            (now, ring.reserved())
        });
        ring.read(|bytes| order.push(Hit::read(bytes)));
        order.end(ring.position(), out);
    }

    /// Takes the programs off. When this returns, none of them runs, and nothing is recorded any more.
    /// One link waits for one grace period of the kernel, some 30 ms; a perf event for its own.
    pub fn detach(&mut self) {
        // The last first: an entry whose return is not watched any more would look unfinished.
        while let Some(link) = self.links.pop() {
            drop(link);
        }
        self.events.clear();
    }

    /// Detaches and appends all hits that are left.
    pub fn finish(&mut self, out: &mut Vec<Hit>) {
        self.detach();
        self.read(out);
        self.order.finish(out);
    }

    /// Hits that found the ring full, by CPU, since the beginning.
    pub fn lost(&self) -> impl Iterator<Item = (u32, u64)> + '_ {
        let cpus = u32::try_from(owlet_percpu::cpus()).unwrap_or(1);
        (0..cpus).map(|cpu| {
            let at = self.lost.base().as_ptr().cast::<u64>().wrapping_add(cpu as usize);
            // SAFETY: one of the map's words, which the kernel's memory holds for every CPU; the
            // kernel adds to it atomically.
            let word = unsafe { AtomicU64::from_ptr(at) };
            (cpu, word.load(Ordering::Relaxed))
        })
    }

    /// Hits at which the kernel did not run the program, since the beginning.
    #[must_use]
    pub fn missed(&self) -> u64 {
        let missed = |(_, program): &(Kind, OwnedFd)| bpf::misses(program.as_fd()).unwrap_or(0);
        self.programs.iter().map(missed).sum()
    }
}

/// One program and one file.
struct Job<'j> {
    found: &'j Found,
    options: &'j Options,
    kind: Kind,
    program: BorrowedFd<'j>,
    file: usize,
}

impl Job<'_> {
    fn path_shown(&self) -> &str {
        self.found.files.get(self.file).map_or("", |file| file.path.as_str())
    }

    fn path(&self) -> io::Result<CString> {
        let open = self.found.files.get(self.file).map(|file| file.open.as_os_str().as_bytes());
        Ok(CString::new(open.unwrap_or_default())?)
    }

    fn pid(&self) -> u32 {
        match self.options.scope {
            Scope::Process(pid) => pid,
            Scope::Everyone => 0,
        }
    }

    fn cookie(&self, site: usize) -> u64 {
        site as u64 | if self.kind == Kind::Return { RETURN } else { 0 }
    }

    fn link(&self, sites: &[usize]) -> io::Result<OwnedFd> {
        let mut list = Sites::default();
        for &at in sites {
            let Some(site) = self.found.sites.get(at) else { continue };
            list.offsets.push(site.offset);
            list.counters.push(site.semaphore);
            list.cookies.push(self.cookie(at));
        }
        let on_return = self.kind == Kind::Return;
        bpf::link_multi(self.program, &self.path()?, &list, on_return, self.pid())
    }

    /// The sites that are refused, found by halves; `error` is why all of `sites` together are.
    fn halve(&self, sites: &[usize], error: &io::Error) -> io::Result<Vec<Refused>> {
        if let [site] = sites {
            return Ok(vec![Refused { site: *site, why: why(error) }]);
        }
        let mut refused = Vec::new();
        let (left, right) = sites.split_at(sites.len() / 2);
        for half in [left, right] {
            match self.link(half) {
                // Closed again at once: all is attached by one link at the end.
                Ok(_) => {}
                Err(error) if is_about_a_site(&error) => refused.extend(self.halve(half, &error)?),
                Err(error) => return Err(error),
            }
        }
        Ok(refused)
    }

    fn event(&self, at: usize, kind: u32) -> io::Result<(OwnedFd, OwnedFd)> {
        let site = self.found.sites.get(at).ok_or(io::ErrorKind::NotFound)?;
        let path = self.path()?;
        let event = bpf::perf_event(&bpf::Event {
            kind,
            path: &path,
            offset: site.offset,
            counter: site.semaphore,
            on_return: self.kind == Kind::Return,
            pid: self.pid(),
        })?;
        let link = bpf::link_perf(self.program, event.as_fd(), self.cookie(at))?;
        Ok((event, link))
    }
}

/// The kernel's own "not supported", which has no name outside.
const ENOTSUPP: i32 = 524;

/// Why a site is refused.
fn why(error: &io::Error) -> String {
    match error.raw_os_error() {
        Some(ENOTSUPP) => "the kernel cannot probe the instruction that stands there".into(),
        _ => Error::io("the kernel refuses it", error).message,
    }
}

/// Errors that may be about one site's instruction, not about us or the process.
fn is_about_a_site(error: &io::Error) -> bool {
    matches!(error.raw_os_error(), Some(libc::EINVAL | libc::EOPNOTSUPP | libc::EIO | ENOTSUPP))
}

/// Refuses returns of code that unwinds. To see a return, the kernel puts an address of its own in place of
/// the return address, for which there is no unwind information: an unwinder that comes to it finds the
/// end of the stack, and the program aborts.
fn is_safe(found: &Found, scope: Scope) -> Result<()> {
    // A USDT probe has no return.
    let watched =
        |at: usize| found.sites.iter().any(|site| site.file == at && site.of == Of::Function);
    let mut files: Vec<_> = found.files.iter().enumerate().collect();
    files.retain(|(at, _)| watched(*at));
    if files.is_empty() {
        return Ok(());
    }
    let mut files: Vec<_> = files.into_iter().map(|(_, file)| file.clone()).collect();
    // The program's own may pass through a library's.
    if let Scope::Process(pid) = scope {
        files.extend(process::object_files(pid)?.into_iter().filter(|file| file.program));
    }
    for file in files {
        if let Some(what) = elf::unwinds(&file.open, file.name()) {
            let message = format!(
                "watching returns may abort the program: {} has {what}, and an unwinder cannot pass \
                 a call whose return the kernel watches",
                file.path
            );
            return Err(Error::new(ErrorKind::Dangerous, message).hint(
                "record entries (--entry) instead, or say --allow-abort if nothing unwinds there",
            ));
        }
    }
    Ok(())
}

fn kinds(found: &Found, moments: Moments) -> Vec<Kind> {
    let functions = found.sites.iter().any(|site| site.of == Of::Function);
    let probes = found.sites.iter().any(|site| site.of != Of::Function);
    // Returns first: an entry whose return is not watched yet would look unfinished.
    [
        (functions && moments.exit(), Kind::Return),
        (functions && moments.entry(), Kind::Entry),
        (probes, Kind::Usdt),
    ]
    .into_iter()
    .filter_map(|(wanted, kind)| wanted.then_some(kind))
    .collect()
}

/// Whether this kernel has `uprobe.multi`, and filters by process. Both are asked as libbpf does
/// (`src/features.c`): a link on a directory is `EBADF` where links are known at all; with pid -1, `EINVAL`
/// where filtering is by process (before, it was by thread, Linux 6.6 to 6.9).
fn best_way(maps: &Maps<'_>) -> Way {
    let code = program::assemble(Kind::Return, maps, None);
    let Ok(program) = bpf::load(c"owlet_question", &code, Way::Multi) else { return Way::Perf };
    let sites = Sites { offsets: vec![0], counters: vec![0], cookies: vec![0] };
    let ask = |pid| {
        let answer = bpf::link_multi(program.as_fd(), c"/", &sites, false, pid);
        answer.err().and_then(|error| error.raw_os_error())
    };
    match (ask(0), ask(u32::MAX)) {
        (Some(libc::EBADF), Some(libc::EINVAL)) => Way::Multi,
        _ => Way::Perf,
    }
}

/// By which way this process could attach here.
///
/// # Errors
/// [`ErrorKind::Permission`] and [`ErrorKind::Unsupported`]: it could not at all.
pub fn available() -> Result<Way> {
    crate::caps::check()?;
    let bytes = ring_bytes(0)?;
    let made = |error: io::Error| refusal("make a BPF map", &error);
    let ring = bpf::ring(bytes).map_err(made)?;
    let array = bpf::array((OPERANDS * 8) as u32, 1, false).map_err(made)?;
    let (lost, operands) = (array.as_fd(), array.as_fd());
    let way = best_way(&Maps { ring: ring.as_fd(), lost, operands, wake_at: bytes });
    if way == Way::Perf {
        bpf::uprobe_kind().map_err(|error| refusal("find perf's uprobes", &error))?;
    }
    Ok(way)
}

fn ring_bytes(wanted: u64) -> Result<u32> {
    let page = owlet_sys::memory::page_size() as u64;
    let bytes = wanted.max(page).checked_next_power_of_two().unwrap_or(u64::MAX);
    match u32::try_from(bytes) {
        // A jump of the program compares with a quarter of it, signed.
        Ok(bytes) if bytes <= 1 << 30 => Ok(bytes),
        _ => Err(Error::new(ErrorKind::Unsupported, "a BPF ring buffer is at most 1G")),
    }
}

/// The operands in memory of every site's arguments.
fn operands(sites: &[Site]) -> io::Result<OwnedFd> {
    let probes = sites.iter().any(|site| site.of != Of::Function);
    let entries = if probes { u32::try_from(sites.len()).unwrap_or(1) } else { 1 };
    let map = bpf::array((OPERANDS * 8) as u32, entries.max(1), false)?;
    for (at, site) in (0u32..).zip(sites) {
        let Of::Probe(arguments) = &site.of else { continue };
        let places = arguments.iter().filter_map(|argument| match argument.place {
            Place::Memory(operand) => Some(operand.to_bytes()),
            _ => None,
        });
        let mut value: Vec<u8> = places.flatten().collect();
        value.resize(OPERANDS * 8, 0);
        bpf::update(map.as_fd(), at, &value)?;
    }
    Ok(map)
}

/// A descriptor that becomes readable when the ring wakes its reader, not whenever something is in it.
fn wake(ring: BorrowedFd<'_>) -> io::Result<OwnedFd> {
    // SAFETY: takes no pointers.
    let fd = unsafe { libc::epoll_create1(libc::EPOLL_CLOEXEC) };
    if fd < 0 {
        return Err(io::Error::last_os_error());
    }
    // SAFETY: a descriptor the kernel has just given us; nobody else owns it.
    let epoll = unsafe { OwnedFd::from_raw_fd(fd) };
    let events = (libc::EPOLLIN | libc::EPOLLET).cast_unsigned();
    let mut event = libc::epoll_event { events, u64: 0 };
    // SAFETY: one valid event.
    let added =
        unsafe { libc::epoll_ctl(fd, libc::EPOLL_CTL_ADD, ring.as_raw_fd(), &raw mut event) };
    if added < 0 { Err(io::Error::last_os_error()) } else { Ok(epoll) }
}

fn rearm(wake: BorrowedFd<'_>) {
    let mut event = libc::epoll_event { events: 0, u64: 0 };
    // SAFETY: room for one event. Whether there was one does not matter.
    unsafe { libc::epoll_wait(wake.as_raw_fd(), &raw mut event, 1, 0) };
}

/// Raises our own limit on open files as far as we may.
fn more_descriptors(more: usize) {
    let mut limit = libc::rlimit { rlim_cur: 0, rlim_max: 0 };
    // SAFETY: the kernel writes one limit there.
    if unsafe { libc::getrlimit(libc::RLIMIT_NOFILE, &raw mut limit) } < 0 {
        return;
    }
    let wanted = limit.rlim_cur.saturating_add(more as u64);
    limit.rlim_cur = wanted.min(limit.rlim_max);
    // SAFETY: reads one limit. What is refused shows when the files are opened.
    unsafe { libc::setrlimit(libc::RLIMIT_NOFILE, &raw const limit) };
}

/// What the kernel's refusals mean here.
fn refusal(what: &str, error: &io::Error) -> Error {
    let failed = Error::io(format!("cannot {what}"), error);
    match error.raw_os_error() {
        Some(libc::EPERM | libc::EACCES) => Error { kind: ErrorKind::Permission, ..failed }.hint(
            "root in a container may not be enough (CAP_BPF, CAP_PERFMON, seccomp), nor anywhere with \
             kernel lockdown",
        ),
        Some(libc::ESRCH) => Error { kind: ErrorKind::NoProcess, ..failed },
        Some(libc::ENOSYS) => Error { kind: ErrorKind::Unsupported, ..failed }
            .hint("this kernel has no BPF; Linux 5.15 is the oldest that can do it"),
        Some(libc::EINVAL) => Error { kind: ErrorKind::Unsupported, ..failed }
            .hint("Linux 5.15 is the oldest that can do it"),
        _ => failed,
    }
}
