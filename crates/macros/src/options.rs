//! What stands in the parentheses of `#[traced(..)]`.

use proc_macro2::Span;
use syn::ext::IdentExt;
use syn::parse::{Parse, ParseStream};
use syn::punctuated::Punctuated;
use syn::{Error, Expr, Ident, LitStr, Path, Result, Token, parenthesized};

/// Whether a program may decide the result.
pub(crate) enum Modify {
    /// It may not.
    No,
    /// By the type's own rule.
    Plain(Span),
    /// By an expression.
    By(Box<Expr>),
}

/// The options.
pub(crate) struct Options {
    pub(crate) name: Option<LitStr>,
    pub(crate) skip: Vec<Ident>,
    pub(crate) skip_all: bool,
    pub(crate) skip_return: bool,
    pub(crate) modify: Modify,
    pub(crate) root: Option<Path>,
}

/// A parameter's name; `self` is one.
struct Param(Ident);

impl Parse for Param {
    fn parse(input: ParseStream<'_>) -> Result<Self> {
        input.call(Ident::parse_any).map(Self)
    }
}

impl Parse for Options {
    fn parse(input: ParseStream<'_>) -> Result<Self> {
        let mut options = Self {
            name: None,
            skip: Vec::new(),
            skip_all: false,
            skip_return: false,
            modify: Modify::No,
            root: None,
        };
        while !input.is_empty() {
            options.one(input)?;
            if !input.is_empty() {
                input.parse::<Token![,]>()?;
            }
        }
        Ok(options)
    }
}

impl Options {
    fn one(&mut self, input: ParseStream<'_>) -> Result<()> {
        if input.peek(Token![crate]) {
            input.parse::<Token![crate]>()?;
            input.parse::<Token![=]>()?;
            self.root = Some(input.call(Path::parse_mod_style)?);
            return Ok(());
        }
        let option: Ident = input.parse()?;
        match option.to_string().as_str() {
            "name" => {
                input.parse::<Token![=]>()?;
                self.name = Some(input.parse()?);
            }
            "skip" => {
                let names;
                parenthesized!(names in input);
                let names = names.call(Punctuated::<Param, Token![,]>::parse_terminated)?;
                self.skip.extend(names.into_iter().map(|param| param.0));
            }
            "skip_all" => self.skip_all = true,
            "skip_return" => self.skip_return = true,
            "modify_return" if input.peek(Token![=]) => {
                input.parse::<Token![=]>()?;
                self.modify = Modify::By(Box::new(input.parse()?));
            }
            "modify_return" => self.modify = Modify::Plain(option.span()),
            other => {
                let known = "name, skip, skip_all, skip_return, modify_return, crate";
                let message = format!("`traced` has no option `{other}`; it has {known}");
                return Err(Error::new(option.span(), message));
            }
        }
        Ok(())
    }
}
