//! Text to tokens, each with its column.

use super::{FilterError, MAX_TEXT};

/// A comparison.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Op {
    Eq,
    Ne,
    Lt,
    Le,
    Gt,
    Ge,
}

impl Op {
    /// The comparison with its two sides exchanged.
    pub(super) fn flip(self) -> Self {
        match self {
            Self::Lt => Self::Gt,
            Self::Le => Self::Ge,
            Self::Gt => Self::Lt,
            Self::Ge => Self::Le,
            same => same,
        }
    }

    pub(super) fn text(self) -> &'static str {
        match self {
            Self::Eq => "==",
            Self::Ne => "!=",
            Self::Lt => "<",
            Self::Le => "<=",
            Self::Gt => ">",
            Self::Ge => ">=",
        }
    }
}

#[derive(Clone, Debug, PartialEq)]
pub(super) enum Token {
    Open,
    Close,
    And,
    Or,
    Not,
    Op(Op),
    Glob,
    /// A bare word: keyword, built-in or field, as its place says.
    Word(String),
    /// `.name` or `."any text"`.
    Field(String),
    Int(i128),
    Float(f64),
    Text(Vec<u8>),
}

/// A token and the column it starts at, counted in characters from 1.
pub(super) type Placed = (usize, Token);

struct Lexer<'a> {
    rest: std::iter::Peekable<std::str::Chars<'a>>,
    column: usize,
}

/// Splits `text`; the last element is the column after the end.
pub(super) fn lex(text: &str) -> Result<(Vec<Placed>, usize), FilterError> {
    if text.len() > MAX_TEXT {
        return Err(FilterError::new(
            1,
            format!("{} bytes are over the limit of {MAX_TEXT}", text.len()),
            "",
        ));
    }
    let mut lexer = Lexer { rest: text.chars().peekable(), column: 1 };
    let mut tokens = Vec::new();
    loop {
        while lexer.next_if(char::is_whitespace).is_some() {}
        let column = lexer.column;
        match lexer.token()? {
            Some(token) => tokens.push((column, token)),
            None => return Ok((tokens, column)),
        }
    }
}

fn is_word_start(c: char) -> bool {
    c.is_alphabetic() || c == '_'
}

fn is_word(c: char) -> bool {
    c.is_alphanumeric() || c == '_' || c == '.'
}

impl Lexer<'_> {
    fn peek(&mut self) -> Option<char> {
        self.rest.peek().copied()
    }

    fn bump(&mut self) -> Option<char> {
        let c = self.rest.next()?;
        self.column += 1;
        Some(c)
    }

    fn next_if(&mut self, wanted: impl Fn(char) -> bool) -> Option<char> {
        if self.peek().is_some_and(wanted) { self.bump() } else { None }
    }

    fn eat(&mut self, wanted: char) -> bool {
        self.next_if(|c| c == wanted).is_some()
    }

    fn word(&mut self, mut word: String) -> String {
        while let Some(c) = self.next_if(is_word) {
            word.push(c);
        }
        word
    }

    fn token(&mut self) -> Result<Option<Token>, FilterError> {
        let column = self.column;
        let Some(c) = self.bump() else { return Ok(None) };
        let token = match c {
            '(' => Token::Open,
            ')' => Token::Close,
            '~' => Token::Glob,
            '=' if self.eat('=') => Token::Op(Op::Eq),
            '=' => {
                return Err(FilterError::new(column, "unknown operator `=`", "equality is `==`"));
            }
            '!' if self.eat('=') => Token::Op(Op::Ne),
            '!' => Token::Not,
            '<' if self.eat('=') => Token::Op(Op::Le),
            '<' if self.eat('>') => Token::Op(Op::Ne),
            '<' => Token::Op(Op::Lt),
            '>' if self.eat('=') => Token::Op(Op::Ge),
            '>' => Token::Op(Op::Gt),
            '&' if self.eat('&') => Token::And,
            '|' if self.eat('|') => Token::Or,
            '&' | '|' => {
                return Err(FilterError::new(
                    column,
                    format!("unknown operator `{c}`"),
                    format!("write `{c}{c}`, or `and`, `or`"),
                ));
            }
            '"' | '\'' => Token::Text(self.quoted(column, c)?),
            '.' => self.field(column)?,
            '-' => self.number(column, true)?,
            '0'..='9' => self.number_from(column, c, false)?,
            c if is_word_start(c) => match self.word(c.into()) {
                word if word == "and" => Token::And,
                word if word == "or" => Token::Or,
                word if word == "not" => Token::Not,
                word => Token::Word(word),
            },
            c => {
                return Err(FilterError::new(
                    column,
                    format!("unexpected character `{}`", c.escape_debug()),
                    "a field with odd characters is written .\"its name\"",
                ));
            }
        };
        Ok(Some(token))
    }

    /// After a dot.
    fn field(&mut self, column: usize) -> Result<Token, FilterError> {
        let bad = |message: &str| FilterError::new(column, message, "write .name or .\"any text\"");
        if let Some(quote) = self.next_if(|c| c == '"' || c == '\'') {
            let bytes = self.quoted(column, quote)?;
            let name = String::from_utf8(bytes).map_err(|_| bad("field name is not UTF-8"))?;
            return Ok(Token::Field(name));
        }
        match self.next_if(is_word_start) {
            Some(c) => Ok(Token::Field(self.word(c.into()))),
            None => Err(bad("no field name after `.`")),
        }
    }

    /// After the opening quote.
    fn quoted(&mut self, column: usize, quote: char) -> Result<Vec<u8>, FilterError> {
        let mut bytes = Vec::new();
        loop {
            let at = self.column;
            let c = match self.bump() {
                None => {
                    return Err(FilterError::new(
                        column,
                        "text without its closing quote",
                        "in a shell, put the whole expression in single quotes",
                    ));
                }
                Some(c) if c == quote => return Ok(bytes),
                Some('\\') => match self.bump() {
                    Some('n') => '\n',
                    Some('t') => '\t',
                    Some('r') => '\r',
                    Some('0') => '\0',
                    Some(c @ ('\\' | '"' | '\'')) => c,
                    Some('x') => {
                        bytes.push(self.hex_byte(at)?);
                        continue;
                    }
                    _ => {
                        return Err(FilterError::new(
                            at,
                            "unknown escape",
                            "known are \\n \\t \\r \\0 \\\\ \\\" \\' \\xHH",
                        ));
                    }
                },
                Some(c) => c,
            };
            bytes.extend(c.encode_utf8(&mut [0; 4]).as_bytes());
        }
    }

    fn hex_byte(&mut self, at: usize) -> Result<u8, FilterError> {
        let mut byte = 0;
        for _ in 0..2 {
            let digit = self.next_if(|c| c.is_ascii_hexdigit()).and_then(|c| c.to_digit(16));
            let Some(digit) = digit else {
                return Err(FilterError::new(at, "\\x needs two hexadecimal digits", ""));
            };
            byte = byte * 16 + digit as u8;
        }
        Ok(byte)
    }

    /// After a minus sign.
    fn number(&mut self, column: usize, negative: bool) -> Result<Token, FilterError> {
        match self.next_if(|c| c.is_ascii_digit()) {
            Some(c) => self.number_from(column, c, negative),
            None => Err(FilterError::new(column, "no number after `-`", "")),
        }
    }

    /// After the first digit.
    fn number_from(
        &mut self,
        column: usize,
        first: char,
        negative: bool,
    ) -> Result<Token, FilterError> {
        let bad = |message: String| {
            FilterError::new(column, message, "numbers are 5, -1, 0xff, 1_000, 2.5, 5us, 3ms, 1s")
        };
        let mut text = String::from(first);
        while let Some(c) = self.next_if(is_word) {
            // An exponent's sign belongs to the number; before it there are only digits.
            let exponent = matches!(c, 'e' | 'E')
                && text.chars().all(|c| c.is_ascii_digit() || c == '.' || c == '_');
            text.push(c);
            if let Some(sign) = self.next_if(|c| exponent && (c == '-' || c == '+')) {
                text.push(sign);
            }
        }
        let plain: String = text.chars().filter(|c| *c != '_').collect();
        let sign = |n: i128| if negative { -n } else { n };
        if let Some(hex) = plain.strip_prefix("0x").or_else(|| plain.strip_prefix("0X")) {
            let number = u64::from_str_radix(hex, 16);
            return number
                .map(|n| Token::Int(sign(n.into())))
                .map_err(|_| bad(format!("`{text}` is no hexadecimal number of 64 bits")));
        }
        let (digits, scale) = split_unit(&plain);
        if let Ok(number) = digits.parse::<u64>() {
            return Ok(Token::Int(sign(i128::from(number) * i128::from(scale.unwrap_or(1)))));
        }
        // Digits only, or at least one digit in front: "1e5", not "einf".
        match digits.parse::<f64>() {
            Ok(number) if number.is_finite() && digits.contains(['.', 'e', 'E']) => {
                let number = if negative { -number } else { number };
                Ok(match scale {
                    Some(scale) => Token::Int((number * scale as f64).round() as i128),
                    None => Token::Float(number),
                })
            }
            _ => Err(bad(format!("`{text}` is no number"))),
        }
    }
}

/// Digits and the nanoseconds of their unit, if they have one.
fn split_unit(text: &str) -> (&str, Option<u64>) {
    for (unit, scale) in [("ns", 1), ("us", 1_000), ("ms", 1_000_000), ("s", 1_000_000_000)] {
        if let Some(digits) = text.strip_suffix(unit) {
            return (digits, Some(scale));
        }
    }
    (text, None)
}
