//! `#[traced]` on functions of every shape: with and without a program they do the same.

use owlet_attach::{Program, Value, traced};
use std::cell::RefCell;
use std::fmt::{Debug, Display};
use std::future::Future;
use std::pin::pin;
use std::sync::{Arc, Mutex};
use std::task::{Context, Poll, Waker};

mod shapes {
    use super::*;

    #[traced]
    pub(super) fn plain(a: u64, b: &str) -> usize {
        b.len() + a as usize
    }

    #[traced]
    pub(super) fn nothing() {}

    #[traced]
    pub(super) fn question(text: &str) -> Result<u32, std::num::ParseIntError> {
        let n: u32 = text.parse()?;
        if n == 7 {
            return Ok(0);
        }
        Ok(n)
    }

    #[traced]
    pub(super) fn generic<T, const N: usize>(value: T, times: [u8; N]) -> String
    where
        T: Debug + Display + Clone,
    {
        let mut out = String::new();
        for n in times {
            out.push_str(&format!("{value}{n}"));
        }
        out
    }

    #[traced]
    pub(super) fn chosen<'a>(a: &'a str, _b: &str, body: bool) -> &'a str {
        let captured = if body { a } else { "" };
        let ret = captured;
        if ret.is_empty() { a } else { ret }
    }

    #[traced]
    pub(super) fn iterator(to: u32) -> impl Iterator<Item = u32> + Clone {
        (0..to).map(|n| n * 2)
    }

    #[traced]
    pub(super) fn fallible_iterator(to: i32) -> Result<impl Iterator<Item = i32>, String> {
        if to < 0 {
            return Err(format!("negative: {to}"));
        }
        let checked: i32 = i32::try_from(i64::from(to)).map_err(|e| e.to_string())?;
        Ok(0..checked)
    }

    #[traced]
    pub(super) fn patterns((x, y): (u32, u32), _: u8, mut list: Vec<u32>) -> Vec<u32> {
        list.push(x + y);
        list
    }

    #[traced]
    pub(super) fn argument(f: impl Fn(u32) -> u32, n: u32) -> u32 {
        f(n)
    }

    /// # Safety
    /// `at` is readable.
    #[traced]
    pub(super) unsafe fn raw(at: *const u32) -> u32 {
        // SAFETY: the caller's.
        unsafe { *at }
    }

    #[traced]
    pub(super) extern "C" fn for_c(a: i32, b: f64) -> f64 {
        f64::from(a) * b
    }

    #[traced]
    #[inline]
    pub(super) fn counted() -> u32 {
        static CALLS: std::sync::atomic::AtomicU32 = std::sync::atomic::AtomicU32::new(0);
        CALLS.fetch_add(1, std::sync::atomic::Ordering::Relaxed)
    }

    #[traced]
    pub(super) fn never(why: &str) -> ! {
        panic!("{why}")
    }

    #[traced]
    pub(super) fn boxed<'a>(name: &'a str) -> Box<dyn Fn() -> String + 'a> {
        Box::new(move || name.to_owned())
    }

    #[traced(name = "other::name", skip(secret), skip_return)]
    pub(super) fn named(user: &str, secret: &str) -> usize {
        user.len() + secret.len()
    }

    #[traced(skip_all)]
    pub(super) fn hidden(_a: u8, _b: u8) {}

    #[traced]
    pub(super) async fn waits(n: u32, log: Arc<Mutex<Vec<u32>>>) -> Result<u32, String> {
        for turn in 0..n {
            log.lock().unwrap().push(turn);
            Yield(false).await;
        }
        if n == 9 {
            Err("nine")?;
        }
        Ok(n * 2)
    }
}

struct Yield(bool);

impl Future for Yield {
    type Output = ();
    fn poll(mut self: std::pin::Pin<&mut Self>, _: &mut Context<'_>) -> Poll<()> {
        if std::mem::replace(&mut self.0, true) { Poll::Ready(()) } else { Poll::Pending }
    }
}

struct Store<K> {
    items: Vec<(K, String)>,
}

impl<K: PartialEq + Clone> Store<K> {
    #[traced(name = "signatures::Store::get")]
    fn get(&self, key: &K) -> Option<&str> {
        self.items.iter().find(|item| item.0 == *key).map(|item| item.1.as_str())
    }

    #[traced(name = "signatures::Store::get_mut")]
    fn get_mut(&mut self, key: &K) -> Option<&mut String> {
        self.items.iter_mut().find(|item| item.0 == *key).map(|item| &mut item.1)
    }

    #[traced(name = "signatures::Store::last")]
    fn last(&mut self) -> &mut (K, String) {
        self.items.last_mut().unwrap()
    }

    #[traced(name = "signatures::Store::insert")]
    fn insert(mut self, key: K, value: String) -> Self {
        self.items.push((key, value));
        self
    }

    #[traced(name = "signatures::Store::new")]
    fn new() -> Self
    where
        Self: Sized,
    {
        Self { items: Vec::new() }
    }

    #[traced(name = "signatures::Store::fetch")]
    async fn fetch(&mut self, key: K) -> Option<&mut String> {
        Yield(false).await;
        self.get_mut(&key)
    }
}

trait Shape {
    type Out<'a>
    where
        Self: 'a;
    fn area(&self) -> f64;
    #[traced(name = "signatures::Shape::twice")]
    fn twice(&self) -> f64 {
        self.area() * 2.0
    }
    fn out(&self) -> Self::Out<'_>;
}

struct Square(f64);

impl Shape for Square {
    type Out<'a> = &'a f64;

    #[traced(name = "signatures::Square::area")]
    fn area(&self) -> f64 {
        self.0 * self.0
    }

    #[traced(name = "signatures::Square::out")]
    fn out(&self) -> Self::Out<'_> {
        &self.0
    }
}

macro_rules! made_by_a_macro {
    ($name:ident, $arg:ident) => {
        #[traced]
        fn $name($arg: u32) -> u32 {
            $arg + 1
        }
    };
}
made_by_a_macro!(from_macro, number);

thread_local! { static SEEN: RefCell<Vec<String>> = const { RefCell::new(Vec::new()) } }

/// Drives a future, whatever wakes it.
fn block_on<F: Future>(future: F) -> F::Output {
    let mut future = pin!(future);
    let mut context = Context::from_waker(Waker::noop());
    loop {
        if let Poll::Ready(out) = future.as_mut().poll(&mut context) {
            return out;
        }
    }
}

/// Everything once; the same whether or not it is traced.
fn all() -> Vec<String> {
    let mut out = Vec::new();
    let mut say = |value: &dyn Debug| out.push(format!("{value:?}"));
    say(&shapes::plain(3, "four"));
    shapes::nothing();
    say(&shapes::question("12"));
    say(&shapes::question("7"));
    say(&shapes::question("x").is_err());
    say(&shapes::generic("t", [1, 2, 3]));
    say(&shapes::generic(5, [1]));
    say(&shapes::chosen("kept", "other", true));
    say(&shapes::iterator(3).collect::<Vec<_>>());
    say(&shapes::fallible_iterator(3).map(Iterator::collect::<Vec<_>>));
    say(&shapes::fallible_iterator(-3).map(Iterator::collect::<Vec<_>>));
    say(&shapes::patterns((1, 2), 3, vec![9]));
    let factor = 3;
    say(&shapes::argument(|n| n * factor, 4));
    let number = 77;
    // SAFETY: a local variable.
    say(&unsafe { shapes::raw(&raw const number) });
    let pointer: extern "C" fn(i32, f64) -> f64 = shapes::for_c;
    say(&std::hint::black_box(pointer)(2, 1.5));
    let before = shapes::counted();
    say(&(shapes::counted() - before));
    say(&std::panic::catch_unwind(|| shapes::never("because")).unwrap_err().is::<String>());
    say(&shapes::boxed("box")());
    say(&shapes::named("me", "secret"));
    shapes::hidden(1, 2);
    let log = Arc::new(Mutex::new(Vec::new()));
    say(&block_on(shapes::waits(2, Arc::clone(&log))));
    say(&block_on(shapes::waits(9, Arc::clone(&log))));
    say(&log.lock().unwrap().len());
    let mut store = Store::new().insert(1, "one".to_owned()).insert(2, "two".to_owned());
    say(&store.get(&2));
    store.get_mut(&1).unwrap().push('!');
    store.last().1.push('?');
    block_on(store.fetch(2)).unwrap().push('.');
    say(&(store.get(&1), store.get(&2), store.get(&3)));
    say(&(Square(3.0).area(), Square(2.0).twice(), Square(1.5).out()));
    say(&from_macro(1));
    out
}

#[test]
fn tr_01_every_signature_does_the_same_with_and_without_programs() {
    let quiet = all();
    let both = Program::session(
        |call| {
            let args: Vec<_> =
                call.args().map(|(name, value)| format!("{name}={value:?}")).collect();
            SEEN.with_borrow_mut(|seen| seen.push(format!("{}({})", call.name(), args.join(", "))));
            owlet_attach::AtExit::Run
        },
        |call| {
            let end = format!("{} = {:?} {:?}", call.name(), call.ret(), call.phase());
            SEEN.with_borrow_mut(|seen| seen.push(end));
        },
    )
    .build();
    let attached = both.attach("*").unwrap();
    let traced = all();
    attached.detach().unwrap();
    assert_eq!(quiet, traced);
    let seen = SEEN.take();
    for line in &seen {
        println!("{line}");
    }
    let has = |line: &str| assert!(seen.iter().any(|s| s == line), "{line}");
    has("signatures::shapes::plain(a=Unsigned(3), b=Text(\"four\"))");
    has("signatures::shapes::plain = Some(Unsigned(7)) Return");
    has("signatures::shapes::question = Some(Err) Return");
    has("signatures::shapes::generic(value=Absent(\"&str\"), times=Bytes([1, 2, 3]))");
    has("signatures::shapes::fallible_iterator = Some(Ok) Return");
    has(
        "signatures::shapes::patterns(_=Absent(\"(u32, u32)\"), _=Absent(\"u8\"), list=Absent(\"alloc::vec::Vec<u32>\"))",
    );
    has("signatures::shapes::never = None Unwound");
    has("other::name(user=Text(\"me\"), secret=Skipped)");
    has("other::name = Some(Skipped) Return");
    has("signatures::shapes::waits = Some(Unsigned(4)) Return");
    has("signatures::shapes::waits = Some(Err) Return");
    has("signatures::Store::get = Some(Text(\"two\")) Return");
    has("signatures::Square::out = Some(Float(1.5)) Return");
    has("signatures::from_macro(number=Unsigned(1))");
    assert_eq!(all(), quiet);
    assert!(SEEN.with_borrow(Vec::is_empty));
    let _ = Value::Unit;
}

mod drops {
    use super::*;

    thread_local! { static LOG: RefCell<Vec<u8>> = const { RefCell::new(Vec::new()) } }

    pub(super) struct Tells(u8);

    impl Drop for Tells {
        fn drop(&mut self) {
            LOG.with_borrow_mut(|log| log.push(self.0));
        }
    }

    impl Tells {
        fn touch(&self) -> u8 {
            self.0
        }
    }

    /// The same functions with and without an attribute.
    macro_rules! functions {
        ($module:ident, $(#[$traced:meta])?) => {
            mod $module {
                use super::*;

                pub(super) struct Owner(pub(super) Tells);

                impl Owner {
                    $(#[$traced])?
                    fn takes(self, _a: Tells, mut b: Tells, _: Tells, c: Tells) -> u8 {
                        let inner = Tells(9);
                        b.0 += 10;
                        c.touch() + b.touch() + inner.touch() + self.0.touch()
                    }
                }

                $(#[$traced])?
                fn patterns((x, _): (Tells, Tells), [_, y]: [Tells; 2], _unused: Tells) -> u8 {
                    #![inline(never)]
                    let sum = y.touch() + x.touch();
                    sum
                }

                $(#[$traced])?
                async fn waits(a: Tells, (b, _): (Tells, Tells), c: Tells) -> u8 {
                    std::future::ready(()).await;
                    c.touch() + a.touch() + b.touch()
                }

                $(#[$traced])?
                fn moves(a: Tells, #[cfg(any())] _gone: Tells, b: Tells, c: Tells) -> Tells {
                    drop(c);
                    let _ = &b;
                    a
                }

                $(#[$traced])?
                fn borrows(a: std::sync::Mutex<u8>, b: Tells) -> u8 {
                    *a.lock().unwrap() + b.touch()
                }

                pub(super) fn all() -> (u64, Vec<u8>) {
                    let sum = [
                        Owner(Tells(1)).takes(Tells(2), Tells(3), Tells(4), Tells(5)),
                        patterns((Tells(1), Tells(2)), [Tells(3), Tells(4)], Tells(5)),
                        block_on(waits(Tells(1), (Tells(2), Tells(3)), Tells(4))),
                        moves(Tells(1), Tells(2), Tells(3)).touch(),
                        borrows(std::sync::Mutex::new(1), Tells(2)),
                    ];
                    // Not polled at all, and what is dropped in the middle.
                    drop(waits(Tells(1), (Tells(2), Tells(3)), Tells(4)));
                    (sum.into_iter().map(u64::from).sum(), LOG.take())
                }
            }
        };
    }

    functions! { plain, }
    functions! { traced_too, #[traced] }

    pub(super) fn both() -> [(u64, Vec<u8>); 2] {
        [plain::all(), traced_too::all()]
    }
}

/// Parameters, what their patterns leave out, and what the body does not use are dropped when and in the
/// order that they are without the attribute.
#[test]
fn tr_01_parameters_are_dropped_in_the_order_of_any_function() {
    let [plain, traced] = drops::both();
    assert_eq!(traced, plain);
    let program = Program::entry(|_| ()).build();
    let attached = program.attach("*::drops::traced_too::*").unwrap();
    let [plain, traced] = drops::both();
    assert_eq!(traced, plain);
    attached.detach().unwrap();
    // A future that is never polled is no call.
    assert_eq!(program.stats().runs, 5);
}

/// Called back by C, by an address that was taken while it was off.
mod c {
    #[owlet_attach::traced]
    pub(super) unsafe extern "C" fn compare(
        a: *const libc::c_void,
        b: *const libc::c_void,
    ) -> libc::c_int {
        // SAFETY: an element of the array that is sorted.
        let a = unsafe { *a.cast::<u32>() };
        // SAFETY: likewise.
        let b = unsafe { *b.cast::<u32>() };
        a.cmp(&b) as libc::c_int
    }
}

/// A function whose address C has taken runs its programs, entry and exit, and what they may ask for is right.
#[test]
fn tr_01_tr_17_a_function_that_c_calls_back_is_traced_at_the_address_it_always_had() {
    let compare: unsafe extern "C" fn(*const libc::c_void, *const libc::c_void) -> libc::c_int =
        std::hint::black_box(c::compare);
    let sorted = || {
        let mut numbers: Vec<u32> = (0..100).map(|n| n * 37 % 101).collect();
        // SAFETY: the array has so many elements of that size, and the function compares two.
        unsafe { libc::qsort(numbers.as_mut_ptr().cast(), numbers.len(), 4, Some(compare)) };
        assert!(numbers.is_sorted());
    };
    sorted();
    let results = Arc::new(Mutex::new(Vec::new()));
    let (told, traces) = (Arc::clone(&results), Arc::new(Mutex::new(String::new())));
    let trace = Arc::clone(&traces);
    let entry = Program::entry(move |_| {
        let mut trace = trace.lock().unwrap();
        if trace.is_empty() {
            *trace = std::backtrace::Backtrace::force_capture().to_string();
        }
    })
    .build();
    let exit = Program::exit(move |call| match call.ret() {
        Some(Value::Signed(n)) => told.lock().unwrap().push(n),
        other => panic!("{other:?}"),
    })
    .build();
    let attached = [entry.attach("*::c::compare").unwrap(), exit.attach("*::c::compare").unwrap()];
    sorted();
    for attached in attached {
        attached.detach().unwrap();
    }
    let runs = entry.stats().runs;
    assert!(runs >= 100, "{runs}");
    assert_eq!(exit.stats().runs, runs);
    let results = results.lock().unwrap();
    assert_eq!(results.len() as u64, runs);
    assert!(results.iter().all(|n| (-1..=1).contains(n)) && results.contains(&-1));
    // Through C's frames to the caller of `qsort`.
    let traces = traces.lock().unwrap();
    let mut rest = traces.as_str();
    for name in ["::c::compare", "qsort", "tr_01_tr_17"] {
        let (_, behind) = rest.split_once(name).unwrap_or_else(|| panic!("no {name}: {traces}"));
        rest = behind;
    }
    drop(traces);
    sorted();
    assert_eq!(entry.stats().runs, runs);
}
