//! `#[traced]`: makes a function one that programs can be attached to.
//!
//! ```text
//! #[traced]                                    async:
//! fn f(a: u64, b: &str) -> R { body }
//!
//! fn f(a: u64, b: &str) -> R {
//!     static FUNCTION: Function = ..;
//!     let captured = 'site: {
//!         site!(FUNCTION, { break 'site Some(..a, b..) });   // off: falls through
//!         None
//!     };
//!     let body = move || -> R { body };                      async move { body }
//!     match captured {
//!         None => body(),
//!         Some(captured) => call(&captured, body, |ret| ..ret..),
//!     }                                                      call_async(captured, body).await
//! }
//! ```
//!
//! The body stands there once, in a closure (that of a function which returns `impl Trait` has its return
//! type inferred at that place), so `return`, `?`, lifetimes, generics, `Self` and statics inside it mean
//! what they did. Parameters are bound again at its start, so that they are dropped in their order. Its two
//! calls are the fast path and the slow one; `None` is known at the one and `Some` at the other, so no flag
//! is left in the compiled code.

mod expand;
mod options;

use proc_macro::TokenStream;

/// Makes a function one that programs can be attached to.
///
/// ```ignore
/// #[owlet::traced]
/// fn lookup(&self, key: &str) -> Option<Value> { .. }
///
/// #[owlet::traced(name = "store::Store::insert", skip(value))]
/// async fn insert(&mut self, key: String, value: Vec<u8>) -> Result<(), Error> { .. }
/// ```
///
/// | option | meaning |
/// |---|---|
/// | `name = ".."` | the full name, instead of the module's path and the function's name; say it for methods |
/// | `skip(a, b)`, `skip_all` | parameters that programs do not see |
/// | `skip_return` | programs do not see the return value |
/// | `modify_return` | programs may decide the result instead of the body: integers, `bool`, `()` |
/// | `modify_return = EXPR` | likewise; `EXPR` is an `Fn(u64) -> R` that makes the result of a program's word |
/// | `crate = PATH` | where `owlet_attach` is, if not where it usually is |
///
/// Works on functions and methods, in traits too, generic, `unsafe`, `extern "C"`, async, returning
/// `impl Trait`. Cost while no program is attached: one instruction. What programs see of arguments is
/// told at `owlet_attach::Value`; an async function's call begins when it is first polled and ends when it is
/// done or dropped.
///
/// # Errors
/// Refused by the compiler: `const fn` (what runs at compile time has no site), functions with
/// `#[track_caller]` (their caller would become the tracer) or `#[naked]`, variadic ones, those without
/// a body; `modify_return` on async functions; async functions that return `!`.
#[proc_macro_attribute]
pub fn traced(options: TokenStream, item: TokenStream) -> TokenStream {
    expand::traced(options.into(), item.into(), "::owlet::attach").into()
}

/// [`macro@traced`] of the crate `owlet_attach`, which re-exports it by that name.
///
/// # Errors
/// As [`macro@traced`].
#[proc_macro_attribute]
pub fn traced_attach(options: TokenStream, item: TokenStream) -> TokenStream {
    expand::traced(options.into(), item.into(), "::owlet_attach").into()
}
