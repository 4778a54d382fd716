//! What `#[traced]` must refuse. Only `cargo test --doc` compiles this.
//!
//! The same without a mistake, so that what fails below fails for the mistake's sake:
//!
//! ```
//! struct Point(u64);
//! impl Point {
//!     #[owlet_attach::traced(name = "demo::Point::far", skip(by), skip_return)]
//!     pub fn far(&self, by: u64) -> u64 { self.0 + by }
//! }
//! #[owlet_attach::traced(modify_return)]
//! fn number(n: u32) -> u32 { n }
//! #[owlet_attach::traced(modify_return = |word| word.to_string())]
//! fn text() -> String { String::new() }
//! fn main() { assert_eq!(Point(1).far(2) + u64::from(number(3)), 6); text(); }
//! ```
//!
//! "a `const fn` cannot be traced: what is evaluated by the compiler has no site".
//! ```compile_fail
//! #[owlet_attach::traced]
//! const fn number() -> u32 { 1 }
//! ```
//!
//! "a function with `#[track_caller]` cannot be traced: the tracer would become its caller".
//! ```compile_fail
//! #[owlet_attach::traced]
//! #[track_caller]
//! fn number() -> u32 { 1 }
//! ```
//!
//! "a naked function cannot be traced: its body is assembly".
//! ```compile_fail
//! #[owlet_attach::traced]
//! #[unsafe(naked)]
//! extern "C" fn number() -> u32 { core::arch::naked_asm!("ret") }
//! ```
//!
//! "a function without a body cannot be traced".
//! ```compile_fail
//! trait Numbers {
//!     #[owlet_attach::traced]
//!     fn number(&self) -> u32;
//! }
//! ```
//!
//! "`traced` goes on functions and methods".
//! ```compile_fail
//! #[owlet_attach::traced]
//! struct Number(u32);
//! ```
//!
//! "the function has no parameter `m` to skip".
//! ```compile_fail
//! #[owlet_attach::traced(skip(m))]
//! fn number(n: u32) -> u32 { n }
//! ```
//!
//! "`traced` has no option `level`; it has name, skip, ..".
//! ```compile_fail
//! #[owlet_attach::traced(level = "debug")]
//! fn number(n: u32) -> u32 { n }
//! ```
//!
//! "`modify_return` does not work on async functions".
//! ```compile_fail
//! #[owlet_attach::traced(modify_return)]
//! async fn number(n: u32) -> u32 { n }
//! ```
//!
//! A type that no word stands for: "the trait bound `String: Modified` is not satisfied".
//! ```compile_fail,E0277
//! #[owlet_attach::traced(modify_return)]
//! fn text() -> String { String::new() }
//! ```
