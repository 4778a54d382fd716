//! Which backend this process gets, for scripts that run it under different conditions.

/// Prints one `key value` a line.
pub(crate) fn run() -> anyhow::Result<bool> {
    println!("backend {:?}", owlet_percpu::backend());
    println!("why {}", owlet_percpu::backend_why());
    println!("cpus {}", owlet_percpu::cpus());
    println!("global-fence {}", owlet_percpu::fence::register_global());
    match owlet_sys::membarrier::query() {
        Ok(s) => println!(
            "membarrier private={} rseq={} sync_core={} global={}",
            s.private(),
            s.rseq(),
            s.sync_core(),
            s.global()
        ),
        Err(e) => println!("membarrier none ({e})"),
    }
    let tsc = owlet_sys::clock::tsc_usable();
    println!("tsc usable={} ({})", tsc.usable, tsc.why);
    Ok(true)
}
