//! The expansion.

use crate::options::{Modify, Options};
use proc_macro2::{Ident, Span, TokenStream};
use quote::{ToTokens, format_ident, quote};
use syn::ext::IdentExt;
use syn::visit_mut::VisitMut;
use syn::{
    AttrStyle, Attribute, Error, FnArg, ItemFn, Lifetime, Pat, PatType, Receiver, Result,
    ReturnType, Signature, Type, parse2,
};

/// The attribute.
pub(crate) fn traced(options: TokenStream, item: TokenStream, root: &str) -> TokenStream {
    match expand(options, item.clone(), root) {
        Ok(tokens) => tokens,
        Err(error) => {
            // The function as it is: what calls it is not to fail as well.
            let error = error.into_compile_error();
            quote!(#error #item)
        }
    }
}

fn expand(options: TokenStream, item: TokenStream, root: &str) -> Result<TokenStream> {
    let options: Options = parse2(options)?;
    let Ok(function) = parse2::<ItemFn>(item.clone()) else {
        return Err(not_a_function(item));
    };
    refuse(&function, &options)?;
    let root = match &options.root {
        Some(path) => path.to_token_stream(),
        None => root.parse::<TokenStream>()?,
    };
    let ItemFn { attrs, vis, sig, block } = &function;
    let params = params(sig, &options)?;
    let names = params.iter().map(|Param { cfgs, name, .. }| quote!(#(#cfgs)* #name));
    let values = params.iter().map(|param| param.capture(&root));
    let attrs = attrs.iter().cloned().map(outer);
    let name = name(sig, &options);
    let modifiable = !matches!(options.modify, Modify::No);
    let value = value(&root, &options);
    let ret = return_type(&sig.output);
    // Local names that no name of the function's meets; a static is an item, and has an unlikely one.
    let local = |name| Ident::new(name, Span::mixed_site());
    let (captured, body, ret_name) = (local("captured"), local("body"), local("ret"));
    let site = Lifetime::new("'site", Span::mixed_site());
    let (sig, params_again) = bind_in_body(sig);
    // The tail's temporaries go before the parameters, in every edition.
    let result = if matches!(ret, Type::Never(_)) {
        quote!(#block)
    } else {
        quote! {
            #[allow(unused_braces, clippy::diverging_sub_expression, clippy::let_unit_value)]
            let #ret_name: #ret = #block;
            #[allow(unreachable_code, clippy::needless_return, clippy::let_and_return)]
            return #ret_name;
        }
    };
    let end = match (sig.asyncness, &options.modify) {
        (Some(_), _) => quote! {
            #root::__private::call_async(
                #captured,
                async move {
                    #params_again
                    if false {
                        // So that `return` and `?` know the type.
                        #[allow(unreachable_code, clippy::all)]
                        let #ret_name: #ret = loop {};
                        #[allow(unreachable_code)]
                        return #ret_name;
                    }
                    #result
                },
                #value,
            ).await
        },
        (None, Modify::No) => quote! {
            let #body = #root::__private::once(move || -> #ret { #params_again #result });
            match #captured {
                ::core::option::Option::None => #body(),
                ::core::option::Option::Some(#captured) => {
                    #root::__private::call(&#captured, #body, #value)
                }
            }
        },
        (None, modify) => {
            let convert = match modify {
                Modify::By(convert) => convert.to_token_stream(),
                _ => quote!(#root::__private::Modified::from_word),
            };
            quote! {
                let #body = #root::__private::once(move || -> #ret { #params_again #result });
                match #captured {
                    ::core::option::Option::None => #body(),
                    ::core::option::Option::Some(#captured) => {
                        #root::__private::call_modifiable(&#captured, #body, #value, #convert)
                    }
                }
            }
        }
    };
    Ok(quote! {
        #(#attrs)*
        #vis #sig {
            static __OWLET_FUNCTION: #root::__private::Function =
                #root::__private::Function::new(#root::__private::Description {
                    name: #name,
                    file: ::core::file!(),
                    line: ::core::line!(),
                    params: &[#(#names),*],
                    modifiable: #modifiable,
                });
            let #captured = #site: {
                #root::__traced_site!(__OWLET_FUNCTION, {
                    #[allow(unused_imports)]
                    use #root::__private::{CaptureName as _, CaptureShape as _, CaptureValue as _};
                    break #site ::core::option::Option::Some(#root::__private::Captured::new(
                        &__OWLET_FUNCTION,
                        #root::__private::here(&__OWLET_FUNCTION),
                        [#(#values),*],
                    ))
                });
                ::core::option::Option::None
            };
            #end
        }
    })
}

/// What is traced must be a function with a body.
fn not_a_function(item: TokenStream) -> Error {
    if parse2::<syn::TraitItemFn>(item.clone()).is_ok() {
        return Error::new_spanned(item, "a function without a body cannot be traced");
    }
    Error::new_spanned(item, "`traced` goes on functions and methods")
}

/// Functions around whose body nothing can be put.
fn refuse(function: &ItemFn, options: &Options) -> Result<()> {
    let sig = &function.sig;
    if let Some(token) = sig.constness {
        let message =
            "a `const fn` cannot be traced: what is evaluated by the compiler has no site";
        return Err(Error::new_spanned(token, message));
    }
    if let Some(variadic) = &sig.variadic {
        return Err(Error::new_spanned(variadic, "a variadic function cannot be traced"));
    }
    for attribute in &function.attrs {
        let path = attribute.path();
        if path.is_ident("track_caller") {
            let message = "a function with `#[track_caller]` cannot be traced: the tracer would \
                           become its caller";
            return Err(Error::new_spanned(attribute, message));
        }
        let text = attribute.meta.to_token_stream().to_string();
        if path.is_ident("naked") || text.replace(' ', "") == "unsafe(naked)" {
            let message = "a naked function cannot be traced: its body is assembly";
            return Err(Error::new_spanned(attribute, message));
        }
    }
    if sig.asyncness.is_some()
        && let ReturnType::Type(_, ty) = &sig.output
        && matches!(**ty, Type::Never(_))
    {
        let message =
            "an async function that returns `!` cannot be traced: write it without a result";
        return Err(Error::new_spanned(&sig.output, message));
    }
    let message = "`modify_return` does not work on async functions";
    match &options.modify {
        Modify::Plain(span) if sig.asyncness.is_some() => Err(Error::new(*span, message)),
        Modify::By(expr) if sig.asyncness.is_some() => Err(Error::new_spanned(expr, message)),
        _ => Ok(()),
    }
}

/// An attribute inside the body, `#![..]`, in front of the function.
fn outer(mut attribute: Attribute) -> Attribute {
    attribute.style = AttrStyle::Outer;
    attribute
}

/// The signature, whose parameters the closure is to own in their order whatever the body does with them,
/// and the statements that bind them there: so that they are dropped in the order that they are dropped in
/// without the attribute, patterns and what they leave out included.
fn bind_in_body(sig: &Signature) -> (Signature, TokenStream) {
    let mut sig = sig.clone();
    let mut again = TokenStream::new();
    for (n, arg) in sig.inputs.iter_mut().enumerate() {
        let FnArg::Typed(arg) = arg else { continue };
        let cfgs: Vec<_> = arg.attrs.iter().filter(|attribute| is_cfg(attribute)).collect();
        let pat = (*arg.pat).clone();
        match &mut *arg.pat {
            Pat::Ident(ident) if ident.subpat.is_none() && ident.by_ref.is_none() => {
                let name = &ident.ident;
                again.extend(quote!(#(#cfgs)* let #pat = #name;));
                ident.mutability = None;
            }
            _ => {
                let whole = format_ident!("__owlet_argument_{n}", span = Span::mixed_site());
                again.extend(quote! {
                    #(#cfgs)* let #whole = #whole;
                    #(#cfgs)* let #pat = #whole;
                });
                *arg.pat = syn::parse_quote!(#whole);
            }
        }
    }
    (sig, again)
}

fn is_cfg(attribute: &Attribute) -> bool {
    attribute.path().is_ident("cfg")
}

/// The full name, an expression.
fn name(sig: &Signature, options: &Options) -> TokenStream {
    if let Some(name) = &options.name {
        return name.to_token_stream();
    }
    let name = sig.ident.unraw().to_string();
    quote!(::core::concat!(::core::module_path!(), "::", #name))
}

/// One parameter.
struct Param {
    /// Whether it is there.
    cfgs: Vec<Attribute>,
    /// Its name, "_" if it is a pattern.
    name: String,
    /// What is captured.
    what: What,
}

enum What {
    Skipped,
    Variable(Ident),
    /// A pattern, of which only the type is known.
    Pattern(String),
}

impl Param {
    fn capture(&self, root: &TokenStream) -> TokenStream {
        let cfgs = &self.cfgs;
        match &self.what {
            What::Skipped => quote!(#(#cfgs)* #root::__private::RawValue::SKIPPED),
            What::Variable(ident) => {
                quote!(#(#cfgs)* (&&&#root::__private::Wrap(&#ident)).capture())
            }
            What::Pattern(ty) => quote!(#(#cfgs)* #root::__private::RawValue::absent(#ty)),
        }
    }
}

fn params(sig: &Signature, options: &Options) -> Result<Vec<Param>> {
    let mut unknown: Vec<&Ident> = options.skip.iter().collect();
    let mut params = Vec::new();
    for arg in &sig.inputs {
        let (FnArg::Typed(PatType { attrs, .. }) | FnArg::Receiver(Receiver { attrs, .. })) = arg;
        let cfgs = attrs.iter().filter(|attribute| is_cfg(attribute)).cloned().collect();
        let (ident, ty) = match arg {
            FnArg::Receiver(receiver) => {
                (Some(Ident::new("self", receiver.self_token.span)), String::new())
            }
            FnArg::Typed(arg) => match &*arg.pat {
                Pat::Ident(pat) if pat.subpat.is_none() && pat.by_ref.is_none() => {
                    (Some(pat.ident.clone()), String::new())
                }
                _ => (None, arg.ty.to_token_stream().to_string()),
            },
        };
        let name = ident.as_ref().map_or_else(|| "_".to_owned(), |i| i.unraw().to_string());
        let skipped = options.skip_all || options.skip.iter().any(|skip| *skip == name);
        unknown.retain(|skip| **skip != name);
        let what = match ident {
            _ if skipped => What::Skipped,
            Some(ident) => What::Variable(ident),
            None => What::Pattern(ty),
        };
        params.push(Param { cfgs, name, what });
    }
    match unknown.first() {
        Some(ident) => {
            let message = format!("the function has no parameter `{ident}` to skip");
            Err(Error::new(ident.span(), message))
        }
        None => Ok(params),
    }
}

/// How the return value is captured: a closure.
fn value(root: &TokenStream, options: &Options) -> TokenStream {
    let ret = Ident::new("ret", Span::mixed_site());
    if options.skip_return {
        return quote!(|_| #root::__private::RawValue::SKIPPED);
    }
    quote! {
        |#ret| {
            #[allow(unused_imports)]
            use #root::__private::{CaptureName as _, CaptureShape as _, CaptureValue as _};
            (&&&#root::__private::Wrap(#ret)).capture()
        }
    }
}

/// The return type, with `_` for every `impl Trait`, which a closure cannot say.
fn return_type(output: &ReturnType) -> Type {
    struct Infer;
    impl VisitMut for Infer {
        fn visit_type_mut(&mut self, ty: &mut Type) {
            if matches!(ty, Type::ImplTrait(_)) {
                *ty = Type::Infer(syn::TypeInfer { underscore_token: Default::default() });
            } else {
                syn::visit_mut::visit_type_mut(self, ty);
            }
        }
    }
    let mut ty = match output {
        ReturnType::Default => syn::parse_quote!(()),
        ReturnType::Type(_, ty) => (**ty).clone(),
    };
    Infer.visit_type_mut(&mut ty);
    ty
}
