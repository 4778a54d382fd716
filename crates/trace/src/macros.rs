//! The macros: declaration, emission, and the site they share.

#[cfg(doctest)]
mod mistakes;

/// Declares tracepoints.
///
/// ```
/// owlet::tracepoint! {
///     /// What the demonstration does.
///     pub mod demo {
///         /// One tick of the clock.
///         #[level(Info)]
///         tick(seq: u64, thread: u32, note: &str);
///         /// Something without fields.
///         idle();
///     }
/// }
///
/// owlet::trace!(demo::tick, 1, 2, "three");
/// owlet::trace!(demo::idle);
/// ```
///
/// The full name is `provider:event`, here `demo:tick`. The provider is the module's name unless
/// `#[provider("other")]` stands before the module. `#[level(..)]` is one of `Error`, `Warn`,
/// `Info` (the default), `Debug` and `Trace`. `#[hooks(register, unregister)]` names two functions
/// that run around the first and the last probe (see [`Hooks`](crate::Hooks)). Attributes come in
/// this order: documentation, level, hooks.
///
/// Field types are those of [`FieldValue`](crate::FieldValue). Each tracepoint becomes a module with
/// a `TRACEPOINT`, to register probes on, and the type `Function` of what a probe calls.
#[macro_export]
macro_rules! tracepoint {
    ($(
        $(#[doc = $mod_doc:expr])*
        $(#[provider($provider:literal)])?
        $vis:vis mod $module:ident { $($body:tt)* }
    )+) => {$(
        $crate::__tracepoint_module! {
            ($($provider)?)
            $(#[doc = $mod_doc])*
            $vis mod $module { $($body)* }
        }
    )+};
}

/// One module of [`tracepoint!`]; the provider comes first, in parentheses.
#[doc(hidden)]
#[macro_export]
macro_rules! __tracepoint_module {
    (
        $provider:tt
        $(#[doc = $mod_doc:expr])*
        $vis:vis mod $module:ident {
            $(
                $(#[doc = $doc:expr])*
                $(#[level($level:ident)])?
                $(#[hooks($register:path, $unregister:path)])?
                $event:ident ( $($field:ident : $ty:ty),* $(,)? );
            )*
        }
    ) => {
        $(#[doc = $mod_doc])*
        #[doc = ""]
        #[doc = ::core::concat!("Tracepoints of `", ::core::stringify!($module), "`.")]
        $vis mod $module {
            #[allow(unused_imports)]
            use super::*;
            $(
                $(#[doc = $doc])*
                #[doc = ""]
                #[doc = ::core::concat!("Tracepoint `", ::core::stringify!($event), "`.")]
                pub mod $event {
                    #[allow(unused_imports)]
                    use super::*;

                    /// What a probe of this tracepoint calls.
                    pub type Function = dyn Fn($($ty),*) + ::core::marker::Send + ::core::marker::Sync;

                    /// Attach probes here.
                    pub static TRACEPOINT: $crate::Tracepoint<Function> = $crate::Tracepoint::new(
                        $crate::__private::SchemaRef {
                            name: ::core::concat!(
                                $crate::__provider!($provider $module), ":", ::core::stringify!($event)
                            ),
                            kind: $crate::__private::Kind::Event,
                            level: $crate::__level!($($level)?),
                            file: ::core::file!(),
                            line: ::core::line!(),
                            doc: ::core::concat!("" $(, $doc, "\n")*).trim_ascii(),
                            fields: &[$($crate::__private::FieldRef {
                                name: ::core::stringify!($field),
                                ty: <$ty as $crate::FieldValue>::TYPE,
                            }),*],
                        },
                        $crate::__hooks!($($register, $unregister)?),
                    );

                    /// Runs one event through everything attached; [`trace!`](owlet::trace) calls it.
                    #[doc(hidden)]
                    #[inline(never)]
                    #[cold]
                    #[allow(clippy::too_many_arguments, single_use_lifetimes)]
                    pub fn emit($($field: $ty),*) {
                        $crate::__private::run(
                            &TRACEPOINT,
                            |function: &Function| function($($field),*),
                            |_encoder| { $($crate::FieldValue::encode(&$field, _encoder);)* },
                        );
                    }
                }
            )*
        }
    };
}

#[doc(hidden)]
#[macro_export]
macro_rules! __provider {
    (() $module:ident) => {
        ::core::stringify!($module)
    };
    (($provider:literal) $module:ident) => {
        $provider
    };
}

#[doc(hidden)]
#[macro_export]
macro_rules! __level {
    () => {
        $crate::__private::Level::Info
    };
    ($level:ident) => {
        $crate::__private::Level::$level
    };
}

#[doc(hidden)]
#[macro_export]
macro_rules! __hooks {
    () => {
        ::core::option::Option::None
    };
    ($register:path, $unregister:path) => {
        ::core::option::Option::Some($crate::Hooks { register: $register, unregister: $unregister })
    };
}

/// Emits an event: `trace!(path::event, arguments..)`, or `trace!(path::event, if condition; arguments..)`.
///
/// While nobody listens, nothing is evaluated, neither the condition nor the arguments. Cost while
/// off: one instruction (with the feature `flag-sites`, a load and a predicted branch).
///
/// Signal safety: as the evaluation of the arguments and the probes attached; sessions are
/// async-signal-safe.
#[macro_export]
macro_rules! trace {
    ($($path:ident)::+ , if $condition:expr $(; $($arg:expr),* $(,)?)?) => {
        $crate::__site!($($path)::+::TRACEPOINT, {
            if $condition {
                $($path)::+::emit($($($arg),*)?);
            }
        })
    };
    ($($path:ident)::+ $(, $arg:expr)* $(,)?) => {
        $crate::__site!($($path)::+::TRACEPOINT, {
            $($path)::+::emit($($arg),*);
        })
    };
}

/// Whether somebody listens to a tracepoint: `enabled!(path::event)`, a `bool`.
///
/// The answer may be out of date when it arrives; [`trace!`](crate::trace) looks for itself. Once it is
/// `true`, every `trace!` of the tracepoint in this object is on, until the tracepoint is switched off.
#[macro_export]
macro_rules! enabled {
    ($($path:ident)::+) => {
        '__owlet_on: {
            $crate::__site!(@"3", $($path)::+::TRACEPOINT, { break '__owlet_on true });
            false
        }
    };
}

/// Declares an enum whose values a trace shows by name.
///
/// ```
/// owlet::event_enum! {
///     /// What a worker is doing.
///     #[derive(PartialEq)]
///     pub enum State: u8 {
///         /// Waiting.
///         Idle = 0,
///         Busy = 1,
///     }
/// }
/// assert_eq!(State::Busy as u8, 1);
/// ```
#[macro_export]
macro_rules! event_enum {
    (
        $(#[$meta:meta])*
        $vis:vis enum $name:ident : $repr:ident {
            $( $(#[$variant_meta:meta])* $variant:ident = $value:literal ),+ $(,)?
        }
    ) => {
        $(#[$meta])*
        #[derive(Clone, Copy, Debug)]
        #[repr($repr)]
        $vis enum $name {
            $( $(#[$variant_meta])* $variant = $value ),+
        }

        impl $crate::FieldValue for $name {
            const TYPE: $crate::__private::TypeRef<'static> = $crate::__private::TypeRef::Enum(
                <$repr as $crate::ScalarValue>::SCALAR,
                &[$(($value as i64, ::core::stringify!($variant))),+],
            );

            #[inline(always)]
            fn encode<'__a>(&'__a self, out: &mut $crate::Encoder<'__a>) {
                out.put((*self as $repr).to_le_bytes());
            }
        }
    };
}

/// One toggle site: runs `$on` when its tracepoint is on. The literal is the entry's kind.
#[cfg(owlet_site = "toggle")]
#[doc(hidden)]
#[macro_export]
macro_rules! __site {
    ($point:path, $on:block) => { $crate::__site!(@"1", $point, $on) };
    (@$kind:literal, $point:path, $on:block) => {
        // SAFETY: the instruction changes flags only, and jumps to the label when it is switched on;
        // the rest is data in a section of its own.
        unsafe {
            ::core::arch::asm!(
                "2: .byte 0xa9",
                ".long {slow} - . - 4",
                ".pushsection owlet_sites,\"aR\",@progbits",
                ".p2align 4",
                ".long 2b - .",
                ".long {slow} - .",
                ".long {key} - .",
                concat!(".long ", $kind),
                ".popsection",
                slow = label $on,
                key = sym $point,
                options(nomem, nostack)
            )
        }
    };
}

/// One flag site: runs `$on` when its tracepoint is on.
#[cfg(all(not(owlet_site = "toggle"), owlet_table))]
#[doc(hidden)]
#[macro_export]
macro_rules! __site {
    ($point:path, $on:block) => { $crate::__site!(@"1", $point, $on) };
    (@$kind:literal, $point:path, $on:block) => {{
        // SAFETY: no instruction, only data in a section of its own.
        unsafe {
            ::core::arch::asm!(
                ".pushsection owlet_sites,\"aR\",@progbits",
                ".p2align 4",
                ".long 0",
                ".long 0",
                ".long {key} - .",
                ".long 2",
                ".popsection",
                key = sym $point,
                options(nomem, nostack, preserves_flags)
            )
        };
        if $crate::__private::unlikely($point.core().is_on()) $on
    }};
}

/// One flag site without a table entry: such a tracepoint cannot be found from outside.
#[cfg(all(not(owlet_site = "toggle"), not(owlet_table)))]
#[doc(hidden)]
#[macro_export]
macro_rules! __site {
    ($point:path, $on:block) => { $crate::__site!(@"1", $point, $on) };
    (@$kind:literal, $point:path, $on:block) => {
        if $crate::__private::unlikely($point.core().is_on()) $on
    };
}
