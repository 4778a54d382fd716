//! Which backend this process gets, for scripts that run it under different conditions.

/// Prints one `key value` a line.
pub(crate) fn run() -> anyhow::Result<bool> {
    say!("backend {:?}", owlet_percpu::backend());
    say!("why {}", owlet_percpu::backend_why());
    say!("cpus {}", owlet_percpu::cpus());
    say!("global-fence {}", owlet_percpu::fence::register_global());
    match owlet_sys::membarrier::query() {
        Ok(s) => say!(
            "membarrier private={} rseq={} sync_core={} global={}",
            s.private(),
            s.rseq(),
            s.sync_core(),
            s.global()
        ),
        Err(e) => say!("membarrier none ({e})"),
    }
    let tsc = owlet_sys::clock::tsc_usable();
    say!("tsc usable={} ({})", tsc.usable, tsc.why);
    Ok(true)
}
