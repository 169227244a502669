//! The actions of `fgraph probe`: a small language, its parser and its evaluation.
//!
//! ```text
//!   action  = what [ "by" key { "," key } ] [ "if" value ]
//!   key     = "caller" | "stack" | "thread" | "function" | "module" | value
//!   what    = "count" | "print" | ( "sum" | "avg" | "min" | "max" | "hist" ) "(" value ")"
//!   value   = operands with operators between them, which bind as in Rust, the tightest first:
//!             * /    + -    &    == != < >    &&    ||
//!   operand = integer | input | "duration" | "str(" input ")" | "\"text\"" | "(" value ")"
//!   input   = "retval" | argument | { "*" } argument { ( "->" | "." ) member }
//!   argument = "argN" | name of a parameter
//! ```
//!
//! In a text in quotes `\"` is a quote, `\\` a backslash and `\n` the end of a line.
//!
//! A value that cannot be computed is missing: an argument that was not recorded, the result of a
//! call in progress, a division by zero, a number of more than 128 bits. Missing values are not
//! counted, and a condition that is missing does not hold.

use std::cmp::Ordering;
use std::fmt;

use fgraph_symbols::signature::ValuePath;

/// The action for each call.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Action {
    pub(crate) what: What,
    /// The keys; each combination has a line. Empty for one line.
    pub(crate) by: Vec<By>,
    pub(crate) condition: Option<Expression>,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum What {
    Count,
    Print,
    Sum(Expression),
    Average(Expression),
    Least(Expression),
    Most(Expression),
    Histogram(Expression),
}

impl What {
    /// Returns the value that is computed for each call.
    pub(crate) fn value(&self) -> Option<&Expression> {
        match self {
            Self::Count | Self::Print => None,
            Self::Sum(value)
            | Self::Average(value)
            | Self::Least(value)
            | Self::Most(value)
            | Self::Histogram(value) => Some(value),
        }
    }
}

/// A property of calls that distinguishes lines.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum By {
    Caller,
    /// The function and all calls around it.
    Stack,
    Thread,
    Function,
    Module,
    Value(Expression),
}

/// A value that is computed for a call.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Expression {
    Number(i128),
    /// An argument or the result, as a number.
    Input(Input),
    /// The text to which an input points.
    Text(Input),
    /// This text.
    Literal(String),
    /// Nanoseconds.
    Duration,
    Binary(Operator, Box<Self>, Box<Self>),
}

/// A value that comes with a call.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(crate) enum Input {
    /// The argument with this index, from 0.
    Argument(usize),
    /// The parameter of this name.
    Parameter(String),
    /// The value behind an argument, as a [`ValuePath`] writes it.
    Behind(String),
    Result,
}

impl Input {
    /// Returns the input as it is written.
    pub(crate) fn name(&self) -> String {
        match self {
            Self::Result => "retval".to_owned(),
            Self::Argument(number) => format!("arg{number}"),
            Self::Parameter(name) | Self::Behind(name) => name.clone(),
        }
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Operator {
    Or,
    And,
    Equal,
    Unequal,
    Less,
    Greater,
    Bits,
    Add,
    Subtract,
    Multiply,
    Divide,
}

impl Operator {
    /// All operators, as they are written; longer ones before their own prefixes.
    const ALL: [(&'static str, Self); 11] = [
        ("||", Self::Or),
        ("&&", Self::And),
        ("==", Self::Equal),
        ("!=", Self::Unequal),
        ("<", Self::Less),
        (">", Self::Greater),
        ("&", Self::Bits),
        ("+", Self::Add),
        ("-", Self::Subtract),
        ("*", Self::Multiply),
        ("/", Self::Divide),
    ];

    /// Returns the precedence.
    fn tightness(self) -> u8 {
        match self {
            Self::Or => 1,
            Self::And => 2,
            Self::Equal | Self::Unequal | Self::Less | Self::Greater => COMPARISON,
            Self::Bits => 4,
            Self::Add | Self::Subtract => 5,
            Self::Multiply | Self::Divide => 6,
        }
    }
}

const COMPARISON: u8 = 3;

/// A value of a call.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(crate) enum Value {
    Number(i128),
    Text(String),
}

/// The inputs of a call, for expressions.
pub(crate) trait Inputs {
    /// Returns an argument or the result as a number.
    fn number(&self, input: &Input) -> Option<i128>;

    /// Returns the text to which an argument or the result points.
    fn text(&self, input: &Input) -> Option<String>;

    /// Returns the duration of the call in nanoseconds.
    fn duration(&self) -> Option<u64>;
}

impl Expression {
    /// Computes the value for a call; `None` if that is impossible.
    pub(crate) fn of(&self, call: &impl Inputs) -> Option<Value> {
        Some(match self {
            Self::Number(number) => Value::Number(*number),
            Self::Input(input) => Value::Number(call.number(input)?),
            Self::Text(input) => Value::Text(call.text(input)?),
            Self::Literal(text) => Value::Text(text.clone()),
            Self::Duration => Value::Number(call.duration()?.into()),
            Self::Binary(operator, left, right) => {
                let left = left.of(call);
                // As in Rust, the right side counts only if the left one does not decide.
                match (operator, left.as_ref().map(is_true)) {
                    (Operator::Or, Some(true)) => return Some(Value::Number(1)),
                    (Operator::And, Some(false)) => return Some(Value::Number(0)),
                    _ => {}
                }
                Value::Number(combine(*operator, &left?, &right.of(call)?)?)
            }
        })
    }

    /// Returns true if it holds for a call.
    pub(crate) fn holds(&self, call: &impl Inputs) -> bool {
        self.of(call).as_ref().is_some_and(is_true)
    }

    fn is_text(&self) -> bool {
        matches!(self, Self::Text(_) | Self::Literal(_))
    }

    /// Returns true if it is a time in nanoseconds.
    pub(crate) fn is_time(&self) -> bool {
        match self {
            Self::Duration => true,
            Self::Binary(Operator::Add | Operator::Subtract, left, right) => {
                left.is_time() && right.is_time()
            }
            Self::Binary(Operator::Multiply, left, right) => left.is_time() != right.is_time(),
            Self::Binary(Operator::Divide, left, right) => left.is_time() && !right.is_time(),
            _ => false,
        }
    }

    /// Passes each of its inputs to `found`, and true if its text is needed.
    fn each_input(&self, found: &mut impl FnMut(&Input, bool)) {
        match self {
            Self::Input(input) => found(input, false),
            Self::Text(input) => found(input, true),
            Self::Binary(_, left, right) => {
                left.each_input(found);
                right.each_input(found);
            }
            Self::Number(_) | Self::Literal(_) | Self::Duration => {}
        }
    }
}

fn is_true(value: &Value) -> bool {
    *value != Value::Number(0)
}

fn combine(operator: Operator, left: &Value, right: &Value) -> Option<i128> {
    let order = match (left, right) {
        (Value::Number(_), Value::Text(_)) | (Value::Text(_), Value::Number(_)) => None,
        _ => Some(left.cmp(right)),
    };
    let numbers = match (left, right) {
        (Value::Number(left), Value::Number(right)) => Some((*left, *right)),
        _ => None,
    };
    Some(match operator {
        Operator::Or => i128::from(is_true(left) || is_true(right)),
        Operator::And => i128::from(is_true(left) && is_true(right)),
        Operator::Equal => i128::from(order? == Ordering::Equal),
        Operator::Unequal => i128::from(order? != Ordering::Equal),
        Operator::Less => i128::from(order? == Ordering::Less),
        Operator::Greater => i128::from(order? == Ordering::Greater),
        Operator::Bits => numbers.map(|(left, right)| left & right)?,
        Operator::Add => numbers.and_then(|(left, right)| left.checked_add(right))?,
        Operator::Subtract => numbers.and_then(|(left, right)| left.checked_sub(right))?,
        Operator::Multiply => numbers.and_then(|(left, right)| left.checked_mul(right))?,
        Operator::Divide => numbers.and_then(|(left, right)| left.checked_div(right))?,
    })
}

impl Action {
    /// Parses an action.
    pub(crate) fn parse(text: &str) -> Result<Self, ParseError> {
        let mut parser = Parser {
            text,
            at: 0,
            depth: 0,
            operators: 0,
        };
        let action = parser.action();
        action.map_err(|why| ParseError {
            text: text.to_owned(),
            at: parser.at,
            why,
        })
    }

    /// Passes each argument or result that it needs to `found`, and true if its text is needed.
    pub(crate) fn each_input(&self, mut found: impl FnMut(&Input, bool)) {
        let keys = self.by.iter().filter_map(|by| match by {
            By::Value(value) => Some(value),
            _ => None,
        });
        let values = self.what.value().into_iter().chain(&self.condition);
        for expression in values.chain(keys) {
            expression.each_input(&mut found);
        }
    }
}

/// The error for an invalid action.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct ParseError {
    text: String,
    /// The byte at which it becomes invalid.
    at: usize,
    why: &'static str,
}

impl ParseError {
    /// Returns the character at which it becomes invalid, counted from 1.
    fn column(&self) -> usize {
        let before = self.text.get(..self.at).unwrap_or(&self.text);
        before.chars().count() + 1
    }
}

impl fmt::Display for ParseError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { text, why, .. } = self;
        write!(f, "{text:?}: {why}, at column {}", self.column())
    }
}

impl std::error::Error for ParseError {}

/// The deepest nesting of parentheses and operators.
const MAX_DEPTH: usize = 64;
const MAX_OPERATORS: usize = 256;

/// Returns the reason that an operator has no value for two operands, for any call.
fn mismatch(operator: Operator, left: &Expression, right: &Expression) -> Option<&'static str> {
    match (operator.tightness(), left.is_text(), right.is_text()) {
        (_, false, false) | (COMPARISON, true, true) | (..COMPARISON, ..) => None,
        (COMPARISON, ..) => Some("a text is compared with a text: str(arg0) == \"text\""),
        _ => Some("a text can only be compared"),
    }
}

struct Parser<'t> {
    text: &'t str,
    /// The position after the parsed part, which is also the place of an error.
    at: usize,
    depth: usize,
    operators: usize,
}

type Parsed<T> = Result<T, &'static str>;

impl<'t> Parser<'t> {
    fn rest(&mut self) -> &'t str {
        let rest = self.text.get(self.at..).unwrap_or_default();
        let trimmed = rest.trim_start();
        self.at += rest.len() - trimmed.len();
        trimmed
    }

    /// Returns the next word; empty if there is none.
    fn word(&mut self) -> &'t str {
        let rest = self.rest();
        let is_part = |c: char| c.is_alphanumeric() || c == '_';
        let len = rest.find(|c| !is_part(c)).unwrap_or(rest.len());
        &rest[..len]
    }

    /// Takes a sign or a word, if it is next.
    fn takes(&mut self, wanted: &str) -> bool {
        let is_word = wanted.starts_with(char::is_alphabetic);
        let is_next = match is_word {
            true => self.word() == wanted,
            false => self.rest().starts_with(wanted),
        };
        self.at += if is_next { wanted.len() } else { 0 };
        is_next
    }

    fn expect(&mut self, sign: &str, why: &'static str) -> Parsed<()> {
        match self.takes(sign) {
            true => Ok(()),
            false => Err(why),
        }
    }

    fn action(&mut self) -> Parsed<Action> {
        let word = self.word();
        let start = self.at;
        self.at += word.len();
        let what = match word {
            "count" => What::Count,
            "print" => What::Print,
            "sum" => What::Sum(self.number_in_parentheses()?),
            "avg" => What::Average(self.number_in_parentheses()?),
            "min" => What::Least(self.in_parentheses()?),
            "max" => What::Most(self.in_parentheses()?),
            "hist" => What::Histogram(self.in_parentheses()?),
            _ => {
                self.at = start;
                return Err("an action is count, sum, avg, min, max, hist or print");
            }
        };
        let mut by = Vec::new();
        if self.takes("by") {
            by.push(self.by()?);
            while self.takes(",") {
                by.push(self.by()?);
            }
        }
        let condition = match self.takes("if") {
            true => Some(self.value(0)?),
            false => None,
        };
        match self.rest() {
            "" => Ok(Action {
                what,
                by,
                condition,
            }),
            rest if rest.starts_with('(') && by.is_empty() && condition.is_none() => {
                Err("`count` and `print` are written without ()")
            }
            _ if condition.is_some() => Err("nothing more makes sense here"),
            _ => Err("only 'by' and 'if' make sense here, in this order"),
        }
    }

    fn in_parentheses(&mut self) -> Parsed<Expression> {
        self.expect("(", "its value in parentheses is missing")?;
        let value = self.value(0)?;
        self.expect(")", "a ')' is missing")?;
        Ok(value)
    }

    fn number_in_parentheses(&mut self) -> Parsed<Expression> {
        let at = self.at;
        let value = self.in_parentheses()?;
        if value.is_text() {
            self.at = at;
            return Err("sum and avg are of numbers, and this is a text");
        }
        Ok(value)
    }

    fn by(&mut self) -> Parsed<By> {
        let word = self.word();
        let by = match word {
            "caller" => By::Caller,
            "stack" => By::Stack,
            "thread" => By::Thread,
            "function" => By::Function,
            "module" => By::Module,
            "" | "if" if !self.rest().starts_with(['(', '"', '-', '*']) => {
                return Err("'by' is by caller, stack, thread, function, module or a value");
            }
            _ => return self.value(0).map(By::Value),
        };
        self.at += word.len();
        Ok(by)
    }

    /// Parses a value whose operators bind tighter than `tightness`.
    fn value(&mut self, tightness: u8) -> Parsed<Expression> {
        let mut left = self.operand()?;
        let mut is_comparison = false;
        loop {
            let rest = self.rest();
            let mut all = Operator::ALL.iter();
            let Some((sign, operator)) = all.find(|(sign, _)| rest.starts_with(sign)) else {
                return Ok(left);
            };
            let own = operator.tightness();
            if own <= tightness {
                return Ok(left);
            }
            if own == COMPARISON && std::mem::replace(&mut is_comparison, true) {
                return Err("comparisons are put together by && and ||");
            }
            self.operators += 1;
            if self.operators > MAX_OPERATORS {
                return Err("too many operators");
            }
            let at = self.at;
            self.at += sign.len();
            let right = self.value(own)?;
            if let Some(why) = mismatch(*operator, &left, &right) {
                self.at = at;
                return Err(why);
            }
            left = Expression::Binary(*operator, Box::new(left), Box::new(right));
        }
    }

    fn operand(&mut self) -> Parsed<Expression> {
        if self.takes("(") {
            self.depth += 1;
            if self.depth > MAX_DEPTH {
                return Err("too many parentheses");
            }
            let value = self.value(0)?;
            self.expect(")", "a ')' is missing")?;
            self.depth -= 1;
            return Ok(value);
        }
        let rest = self.rest();
        if rest.starts_with('"') {
            return self.literal();
        }
        let digits = rest.strip_prefix('-').unwrap_or(rest);
        if digits.starts_with(|c: char| c.is_ascii_digit()) {
            return self.number();
        }
        let word = self.word();
        if word == "duration" {
            self.at += word.len();
            return Ok(Expression::Duration);
        }
        if word == "str" {
            let before = self.at;
            self.at += word.len();
            if self.takes("(") {
                let input = self.input("str() takes argN, a parameter's name or retval")?;
                self.expect(")", "a ')' is missing")?;
                return Ok(Expression::Text(input));
            }
            // A parameter may have this name.
            self.at = before;
        }
        let why =
            "a value is an integer, argN, a parameter's name, retval, duration, str() or \"text\"";
        self.input(why).map(Expression::Input)
    }

    fn input(&mut self, why: &'static str) -> Parsed<Input> {
        let start = self.at;
        let mut path = String::new();
        while self.takes("*") {
            path.push('*');
        }
        let stars = path.len();
        let input = self.argument(why)?;
        path += &input.name();
        loop {
            let rest = self.rest();
            let sign = ["->", "."].into_iter().find(|sign| rest.starts_with(sign));
            let Some(sign) = sign else { break };
            self.at += sign.len();
            let member = self.word();
            if member.is_empty() {
                return Err("the name of a member is missing");
            }
            self.at += member.len();
            path.extend([sign, member]);
        }
        if path.len() == stars + input.name().len() && stars == 0 {
            return Ok(input);
        }
        if input == Input::Result {
            self.at = start;
            return Err("values behind an address are those of arguments, not of retval");
        }
        match path.parse::<ValuePath>() {
            Ok(path) => Ok(Input::Behind(path.to_string())),
            Err(_) => {
                self.at = start;
                Err("too many members")
            }
        }
    }

    fn argument(&mut self, why: &'static str) -> Parsed<Input> {
        let word = self.word();
        let is_keyword = matches!(word, "" | "by" | "if" | "duration");
        if is_keyword || word.starts_with(|c: char| c.is_numeric()) {
            return Err(why);
        }
        let number = word.strip_prefix("arg").map(str::parse);
        let input = match (word, number) {
            ("retval", _) => Input::Result,
            (_, Some(Ok(number))) => Input::Argument(number),
            _ => Input::Parameter(word.to_owned()),
        };
        self.at += word.len();
        Ok(input)
    }

    /// A text in quotes.
    fn literal(&mut self) -> Parsed<Expression> {
        let mut text = String::new();
        let mut is_escaped = false;
        for (at, character) in self.rest().char_indices().skip(1) {
            match (character, is_escaped) {
                ('"', false) => {
                    self.at += at + 1;
                    return Ok(Expression::Literal(text));
                }
                ('\\', false) => {
                    is_escaped = true;
                    continue;
                }
                ('n', true) => text.push('\n'),
                _ => text.push(character),
            }
            is_escaped = false;
        }
        Err("the quote that ends the text is missing")
    }

    /// Decimal, or hexadecimal with `0x` before it.
    fn number(&mut self) -> Parsed<Expression> {
        let rest = self.rest();
        let is_negative = rest.starts_with('-');
        let start = self.at;
        self.at += usize::from(is_negative);
        let word = self.word();
        let number = match word.strip_prefix("0x") {
            Some(digits) => u64::from_str_radix(digits, 16),
            None => word.parse(),
        };
        let Ok(number) = number else {
            self.at = start;
            return Err("an integer is decimal, or 0x and hexadecimal, and at most 64 bits long");
        };
        self.at += word.len();
        let number = i128::from(number);
        Ok(Expression::Number(if is_negative {
            -number
        } else {
            number
        }))
    }
}

#[cfg(test)]
mod tests;
