//! A program to be compiled by a compiler that is traced.

use std::collections::{BTreeMap, HashMap};
use std::fmt::{self, Display};
use std::panic;

#[derive(Clone, Debug, PartialEq)]
enum Value {
    Number(f64),
    Text(String),
    List(Vec<Value>),
}

impl Display for Value {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Number(number) => write!(f, "{number:.3}"),
            Self::Text(text) => write!(f, "{text:?}"),
            Self::List(values) => {
                f.write_str("[")?;
                for (index, value) in values.iter().enumerate() {
                    if index != 0 {
                        f.write_str(", ")?;
                    }
                    value.fmt(f)?;
                }
                f.write_str("]")
            }
        }
    }
}

trait Shape {
    fn area(&self) -> f64;
}

struct Square(f64);
struct Circle(f64);

impl Shape for Square {
    fn area(&self) -> f64 {
        self.0 * self.0
    }
}

impl Shape for Circle {
    fn area(&self) -> f64 {
        self.0 * self.0 * std::f64::consts::PI
    }
}

fn words(text: &str) -> BTreeMap<&str, usize> {
    let mut counts = HashMap::new();
    for word in text.split_whitespace() {
        *counts.entry(word).or_insert(0) += 1;
    }
    counts.into_iter().collect()
}

fn sorted<T: Ord, I: IntoIterator<Item = T>>(items: I) -> Vec<T> {
    let mut items: Vec<T> = items.into_iter().collect();
    items.sort();
    items
}

fn main() {
    let shapes: Vec<Box<dyn Shape>> = vec![Box::new(Square(2.0)), Box::new(Circle(0.5))];
    let areas = shapes.iter().map(|shape| Value::Number(shape.area()));
    let list = Value::List(areas.chain([Value::Text("a \"b\"".into())]).collect());
    println!("{list} {}", list == list.clone());
    println!("{:?}", words("to be or not to be"));
    println!("{:?} {:?}", sorted([3, 1, 2]), sorted(["b", "a"]));
    panic::set_hook(Box::new(|_| {}));
    let caught = panic::catch_unwind(|| sorted([1])[1]);
    println!("{}", caught.is_err());
}
