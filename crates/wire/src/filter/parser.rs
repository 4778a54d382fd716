//! Tokens to an expression.
//!
//! ```text
//! or   := and { ("or" | "||") and }
//! and  := not { ("and" | "&&") not }
//! not  := ("not" | "!") not | "(" or ")" | test
//! test := "has" "(" subject ")"
//!       | subject [ op value | "~" text | "contains" value ]
//!       | value op subject
//! ```

use super::lexer::{Op, Placed, Token, lex};
use super::{FilterError, MAX_NESTING, MAX_TESTS};
use crate::schema::Level;

#[derive(Clone, Debug, PartialEq)]
pub(super) enum Expr {
    Or(Vec<Expr>),
    And(Vec<Expr>),
    Not(Box<Expr>),
    Test(Test),
}

/// One comparison.
#[derive(Clone, Debug, PartialEq)]
pub(super) struct Test {
    pub(super) column: usize,
    pub(super) subject: Subject,
    pub(super) check: Check,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Subject {
    Level,
    Name,
    Pid,
    Tid,
    Comm,
    Duration,
    Field(String),
}

#[derive(Clone, Debug, PartialEq)]
pub(super) enum Check {
    Compare(Op, Operand),
    Glob(Vec<u8>),
    Contains(Operand),
    /// The value is `true`.
    True,
    /// There is a value.
    Has,
}

#[derive(Clone, Debug, PartialEq)]
pub(super) enum Operand {
    Int(i128),
    Float(f64),
    Text(Vec<u8>),
    Bool(bool),
    Level(Level),
}

impl Expr {
    pub(super) fn each_test(&self, visit: &mut impl FnMut(&Test)) {
        match self {
            Self::Or(all) | Self::And(all) => all.iter().for_each(|one| one.each_test(visit)),
            Self::Not(inner) => inner.each_test(visit),
            Self::Test(test) => visit(test),
        }
    }
}

struct Parser {
    tokens: std::iter::Peekable<std::vec::IntoIter<Placed>>,
    end: usize,
    tests: usize,
    nesting: usize,
}

/// Parses a whole text; `None` when it is empty.
pub(super) fn parse(text: &str) -> Result<Option<Expr>, FilterError> {
    let (tokens, end) = lex(text)?;
    if tokens.is_empty() {
        return Ok(None);
    }
    let mut parser = Parser { tokens: tokens.into_iter().peekable(), end, tests: 0, nesting: 0 };
    let expr = parser.or()?;
    match parser.tokens.next() {
        None => Ok(Some(expr)),
        Some((column, Token::Close)) => {
            Err(FilterError::new(column, "`)` without its `(`", "remove it, or add the `(`"))
        }
        Some((column, token)) => Err(FilterError::new(
            column,
            format!("expected `and`, `or` or the end, found {}", show(&token)),
            "join comparisons with `and` or `or`",
        )),
    }
}

impl Parser {
    fn peek(&mut self) -> Option<&Token> {
        self.tokens.peek().map(|(_, token)| token)
    }

    fn column(&mut self) -> usize {
        self.tokens.peek().map_or(self.end, |(column, _)| *column)
    }

    fn eat(&mut self, token: &Token) -> bool {
        self.tokens.next_if(|(_, next)| next == token).is_some()
    }

    fn or(&mut self) -> Result<Expr, FilterError> {
        let first = self.and()?;
        let mut all = vec![first];
        while self.eat(&Token::Or) {
            all.push(self.and()?);
        }
        Ok(one_or(all, Expr::Or))
    }

    fn and(&mut self) -> Result<Expr, FilterError> {
        let first = self.not()?;
        let mut all = vec![first];
        while self.eat(&Token::And) {
            all.push(self.not()?);
        }
        Ok(one_or(all, Expr::And))
    }

    fn not(&mut self) -> Result<Expr, FilterError> {
        let column = self.column();
        let negated = self.eat(&Token::Not);
        if !negated && !self.eat(&Token::Open) {
            return self.test().map(Expr::Test);
        }
        self.nesting += 1;
        if self.nesting > MAX_NESTING {
            return Err(FilterError::new(
                column,
                format!("nested deeper than {MAX_NESTING}"),
                "write fewer parentheses",
            ));
        }
        let inner = if negated {
            Expr::Not(Box::new(self.not()?))
        } else {
            let inner = self.or()?;
            if !self.eat(&Token::Close) {
                let at = self.column();
                return Err(FilterError::new(
                    at,
                    format!("expected `)` for the `(` at column {column}"),
                    "",
                ));
            }
            inner
        };
        self.nesting -= 1;
        Ok(inner)
    }

    fn test(&mut self) -> Result<Test, FilterError> {
        let column = self.column();
        self.tests += 1;
        if self.tests > MAX_TESTS {
            return Err(FilterError::new(
                column,
                format!("more than {MAX_TESTS} comparisons"),
                "split it, or match names with `~`",
            ));
        }
        match self.tokens.next() {
            Some((_, Token::Word(word))) if word == "has" && self.peek() == Some(&Token::Open) => {
                self.has(column)
            }
            Some((_, Token::Word(word))) if word == "true" || word == "false" => {
                self.literal_first(column, Operand::Bool(word == "true"))
            }
            Some((_, Token::Word(word))) => {
                let subject = subject(word);
                self.after_subject(column, subject)
            }
            Some((_, Token::Field(name))) => self.after_subject(column, Subject::Field(name)),
            Some((_, Token::Int(n))) => self.literal_first(column, Operand::Int(n)),
            Some((_, Token::Float(n))) => self.literal_first(column, Operand::Float(n)),
            Some((_, Token::Text(text))) => self.literal_first(column, Operand::Text(text)),
            Some((column, token)) => Err(FilterError::new(
                column,
                format!("expected a comparison, found {}", show(&token)),
                "such as `level >= warn` or `len > 100`",
            )),
            None => Err(FilterError::new(
                column,
                "expected a comparison, found the end",
                "such as `level >= warn` or `len > 100`",
            )),
        }
    }

    fn has(&mut self, column: usize) -> Result<Test, FilterError> {
        self.eat(&Token::Open);
        let at = self.column();
        let subject = match self.tokens.next() {
            Some((_, Token::Word(word))) => subject(word),
            Some((_, Token::Field(name))) => Subject::Field(name),
            _ => return Err(FilterError::new(at, "has() takes the name of a field", "")),
        };
        let at = self.column();
        if !self.eat(&Token::Close) {
            return Err(FilterError::new(at, "expected `)` after the name", "as in has(field)"));
        }
        Ok(Test { column, subject, check: Check::Has })
    }

    fn after_subject(&mut self, column: usize, subject: Subject) -> Result<Test, FilterError> {
        let at = self.column();
        let check = if let Some((_, Token::Op(op))) =
            self.tokens.next_if(|(_, token)| matches!(token, Token::Op(_)))
        {
            let at = self.column();
            Check::Compare(op, self.operand(&subject, at)?)
        } else if self.eat(&Token::Glob) {
            let at = self.column();
            match self.tokens.next() {
                Some((_, Token::Text(glob))) => Check::Glob(glob),
                _ => {
                    return Err(FilterError::new(
                        at,
                        "`~` takes a glob as text",
                        "as in name ~ \"app:*\"",
                    ));
                }
            }
        } else if self.eat(&Token::Word("contains".to_owned())) {
            let at = self.column();
            Check::Contains(self.operand(&subject, at)?)
        } else {
            Check::True
        };
        let test = Test { column, subject, check };
        sense(&test, at)?;
        Ok(test)
    }

    /// `5 < len` is `len > 5`.
    fn literal_first(&mut self, column: usize, operand: Operand) -> Result<Test, FilterError> {
        let at = self.column();
        let Some((_, Token::Op(op))) = self.tokens.next() else {
            return Err(FilterError::new(
                at,
                "expected a comparison after the value",
                "the name comes first: NAME OP VALUE",
            ));
        };
        let at = self.column();
        let subject = match self.tokens.next() {
            Some((_, Token::Word(word))) => subject(word),
            Some((_, Token::Field(name))) => Subject::Field(name),
            _ => {
                return Err(FilterError::new(at, "expected a name after the comparison", ""));
            }
        };
        let test = Test { column, subject, check: Check::Compare(op.flip(), operand) };
        sense(&test, column)?;
        Ok(test)
    }

    fn operand(&mut self, subject: &Subject, at: usize) -> Result<Operand, FilterError> {
        match self.tokens.next() {
            Some((_, Token::Int(n))) => Ok(Operand::Int(n)),
            Some((_, Token::Float(n))) => Ok(Operand::Float(n)),
            Some((_, Token::Text(text))) if *subject == Subject::Level => {
                level(&String::from_utf8_lossy(&text), at)
            }
            Some((_, Token::Text(text))) => Ok(Operand::Text(text)),
            Some((_, Token::Word(word))) if *subject == Subject::Level => level(&word, at),
            Some((_, Token::Word(word))) if word == "true" => Ok(Operand::Bool(true)),
            Some((_, Token::Word(word))) if word == "false" => Ok(Operand::Bool(false)),
            Some((_, Token::Word(word) | Token::Field(word))) => Err(FilterError::new(
                at,
                format!("expected a value, found the name `{word}`"),
                format!("text is quoted: \"{word}\""),
            )),
            Some((_, token)) => {
                Err(FilterError::new(at, format!("expected a value, found {}", show(&token)), ""))
            }
            None => Err(FilterError::new(at, "expected a value, found the end", "")),
        }
    }
}

fn one_or(mut all: Vec<Expr>, many: fn(Vec<Expr>) -> Expr) -> Expr {
    match all.pop() {
        Some(only) if all.is_empty() => only,
        Some(last) => {
            all.push(last);
            many(all)
        }
        None => many(all),
    }
}

fn subject(word: String) -> Subject {
    match word.as_str() {
        "level" => Subject::Level,
        "name" => Subject::Name,
        "pid" => Subject::Pid,
        "tid" => Subject::Tid,
        "comm" => Subject::Comm,
        "duration" => Subject::Duration,
        _ => Subject::Field(word),
    }
}

fn level(word: &str, at: usize) -> Result<Operand, FilterError> {
    let level = match word.to_ascii_lowercase().as_str() {
        "error" => Level::Error,
        "warn" | "warning" => Level::Warn,
        "info" => Level::Info,
        "debug" => Level::Debug,
        "trace" => Level::Trace,
        _ => {
            return Err(FilterError::new(
                at,
                format!("unknown level `{word}`"),
                "levels are error, warn, info, debug, trace",
            ));
        }
    };
    Ok(Operand::Level(level))
}

/// Refuses what no event of any schema could satisfy: the built-in names have known types.
fn sense(test: &Test, at: usize) -> Result<(), FilterError> {
    use Check::{Compare, Contains, Glob, Has, True};
    let (wants, fine) = match (&test.subject, &test.check) {
        (_, Has) | (Subject::Field(_), _) => return Ok(()),
        (Subject::Level, check) => {
            ("a level, as in level >= warn", matches!(check, Compare(_, Operand::Level(_))))
        }
        (Subject::Name | Subject::Comm, check) => (
            "text, with == != ~ or contains",
            matches!(check, Glob(_) | Compare(_, Operand::Text(_)) | Contains(Operand::Text(_))),
        ),
        (Subject::Pid | Subject::Tid | Subject::Duration, check) => (
            "a number, with == != < <= > >=",
            matches!(check, Compare(_, Operand::Int(_) | Operand::Float(_))),
        ),
    };
    if fine {
        return Ok(());
    }
    let what = match test.check {
        True => "is no condition by itself",
        _ => "is not compared like that",
    };
    let name = match test.subject {
        Subject::Level => "level",
        Subject::Name => "name",
        Subject::Pid => "pid",
        Subject::Tid => "tid",
        Subject::Comm => "comm",
        Subject::Duration | Subject::Field(_) => "duration",
    };
    Err(FilterError::new(
        at,
        format!("`{name}` {what}"),
        format!("it is compared with {wants}; a field of that name is written .{name}"),
    ))
}

fn show(token: &Token) -> String {
    match token {
        Token::Open => "`(`".to_owned(),
        Token::Close => "`)`".to_owned(),
        Token::And => "`and`".to_owned(),
        Token::Or => "`or`".to_owned(),
        Token::Not => "`not`".to_owned(),
        Token::Op(op) => format!("`{}`", op.text()),
        Token::Glob => "`~`".to_owned(),
        Token::Word(word) => format!("`{word}`"),
        Token::Field(word) => format!("`.{word}`"),
        Token::Int(n) => format!("`{n}`"),
        Token::Float(n) => format!("`{n}`"),
        Token::Text(_) => "text".to_owned(),
    }
}
