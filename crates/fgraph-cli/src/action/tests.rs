use super::*;

/// A call with these arguments, `size` the second one, which has taken 250 ns.
struct Call;

impl Inputs for Call {
    fn number(&self, input: &Input) -> Option<i128> {
        match input {
            Input::Argument(0) => Some(6),
            Input::Argument(1) => Some(-2),
            Input::Parameter(name) if name == "size" => Some(-2),
            Input::Result => Some(i128::MAX),
            Input::Behind(path) if path == "*arg0->next.size" => Some(40),
            _ => None,
        }
    }

    fn text(&self, input: &Input) -> Option<String> {
        (*input == Input::Argument(0)).then(|| "text".to_owned())
    }

    fn duration(&self) -> Option<u64> {
        Some(250)
    }
}

fn value(text: &str) -> Option<Value> {
    let action = Action::parse(&format!("max({text})")).unwrap();
    let What::Most(value) = action.what else {
        panic!("{action:?}");
    };
    value.of(&Call)
}

#[test]
fn operators_bind_as_in_rust() {
    for (text, expected) in [
        ("1 + 2 * 3", 1 + 2 * 3),
        ("(1 + 2) * 3", 9),
        ("7 - 2 - 1", 4),
        ("16 / 4 / 2", 2),
        ("6 & 2 + 1", 6 & (2 + 1)),
        ("6 & 4 == 4", i128::from(6 & 4 == 4)),
        ("1 < 2 && 3 > 4 || 1 == 1", 1),
        ("0 && 1 || 1", 1),
        ("1 || 0 && 0", 1),
        ("arg0 * size", -12),
        ("arg1 == size", 1),
        ("duration/100", 2),
        ("* arg0 -> next . size+2", 42),
        ("2 * *arg0->next.size", 80),
        ("2-arg1", 4),
        ("-3 - -4", 1),
        ("0xff & 0x0f", 15),
        ("str(arg0) == str(arg0)", 1),
        (r#"str(arg0) == "text""#, 1),
        (r#""a\"b\\" != "a\"b""#, 1),
    ] {
        assert_eq!(value(text), Some(Value::Number(expected)), "{text}");
    }
    assert_eq!(value("str(arg0)"), Some(Value::Text("text".to_owned())));
}

#[test]
fn values_that_cannot_be_computed_are_missing() {
    for text in [
        "1 / 0",
        "arg0 / (arg1 + 2)",
        "retval + 1",
        "retval * retval",
        "retval * 2 / 0",
        "arg5",
        "absent",
        "arg5 == arg5",
        "str(arg1)",
        "str(arg1) == str(arg0)",
        "arg5 || 1",
        "0 || arg5",
    ] {
        assert_eq!(value(text), None, "{text}");
    }
    assert_eq!(value("1 || arg5"), Some(Value::Number(1)));
    assert_eq!(value("0 && arg5"), Some(Value::Number(0)));
    let action = Action::parse("count if arg5 != 1").unwrap();
    assert!(!action.condition.unwrap().holds(&Call));
}

#[test]
fn an_action_has_keys_and_a_condition() {
    let action = Action::parse(" avg ( arg0 ) by caller if retval==0 && size > 3 ").unwrap();
    assert_eq!(
        action.what,
        What::Average(Expression::Input(Input::Argument(0)))
    );
    assert_eq!(action.by, [By::Caller]);
    let mut inputs = Vec::new();
    action.each_input(|input, is_text| inputs.push((input.clone(), is_text)));
    let size = Input::Parameter("size".to_owned());
    let expected = [
        (Input::Argument(0), false),
        (Input::Result, false),
        (size, false),
    ];
    assert_eq!(inputs, expected);
    let action = Action::parse("count by function, str(path), size & 7 if arg0").unwrap();
    let path = Expression::Text(Input::Parameter("path".to_owned()));
    assert_eq!(action.by[..2], [By::Function, By::Value(path.clone())]);
    assert!(matches!(action.by[2], By::Value(Expression::Binary(..))));
    let mut inputs = Vec::new();
    action.each_input(|input, is_text| inputs.push((input.name(), is_text)));
    let expected = [("arg0", false), ("path", true), ("size", false)];
    assert_eq!(inputs, expected.map(|(name, is)| (name.to_owned(), is)));
    // Names of parameters may look like words of the language.
    for text in [
        "sum(str)",
        "sum(count)",
        "print by thread",
        "count by module",
        "hist(args)",
    ] {
        assert!(Action::parse(text).is_ok(), "{text}");
    }
}

#[test]
fn times_are_told_from_other_numbers() {
    let is_time = |text: &str| {
        let action = Action::parse(&format!("sum({text})")).unwrap();
        action.what.value().unwrap().is_time()
    };
    for text in ["duration", "duration - 2 * duration", "3 * duration / arg0"] {
        assert!(is_time(text), "{text}");
    }
    for text in [
        "arg0",
        "duration / duration",
        "duration > 5",
        "duration + 1",
    ] {
        assert!(!is_time(text), "{text}");
    }
}

#[test]
fn errors_say_where() {
    for (text, column, part) in [
        ("", 1, "an action is"),
        ("total(arg0)", 1, "an action is"),
        ("sum", 4, "in parentheses"),
        ("sum(arg0", 9, "')'"),
        ("sum()", 5, "a value is"),
        ("hist(arg0 +)", 12, "a value is"),
        ("hist(str(1))", 10, "str() takes"),
        ("count by", 9, "by caller"),
        ("count by if arg0", 10, "by caller"),
        ("count by arg0,", 15, "by caller"),
        (r#"count if str(arg0) == "a"#, 23, "quote"),
        ("count if", 9, "a value is"),
        ("count if 1 < 2 < 3", 16, "put together"),
        ("count 5", 7, "'by' and 'if'"),
        ("count if arg0 by thread", 15, "nothing more"),
        ("sum(arg0->)", 11, "member is missing"),
        ("sum(*)", 6, "a value is"),
        ("sum(*3)", 6, "a value is"),
        ("sum(*retval)", 5, "not of retval"),
        ("sum(retval->size)", 5, "not of retval"),
        ("sum(99999999999999999999)", 5, "64 bits"),
        ("sum(0xfg)", 5, "64 bits"),
        ("größe", 1, "an action is"),
        ("sum(größe + )", 13, "a value is"),
        ("sum(arg0 % 2)", 10, "')'"),
        ("count()", 6, "without ()"),
        ("print (arg0)", 7, "without ()"),
        ("sum(str(arg0))", 4, "of numbers"),
        ("avg(str(path)) by caller", 4, "of numbers"),
        ("max(str(arg0) + 1)", 15, "only be compared"),
        (r#"sum("a")"#, 4, "of numbers"),
        ("count if str(arg0) == 1", 20, "with a text"),
        ("count if 1 < str(arg0)", 12, "with a text"),
    ] {
        let error = Action::parse(text).unwrap_err();
        assert_eq!(error.column(), column, "{error}");
        assert!(error.to_string().contains(part), "{error}");
    }
    let deep = format!("sum({}1{})", "(".repeat(100), ")".repeat(100));
    assert!(
        Action::parse(&deep)
            .unwrap_err()
            .to_string()
            .contains("too many")
    );
    let long = format!("sum(1{})", " + 1".repeat(100_000));
    assert!(
        Action::parse(&long)
            .unwrap_err()
            .to_string()
            .contains("too many")
    );
}

#[test]
fn no_text_makes_it_panic() {
    const PARTS: [&str; 29] = [
        "sum",
        "count",
        "print",
        "hist",
        "(",
        ")",
        "arg0",
        "arg99999999999999999999",
        "size",
        "retval",
        "duration",
        "str",
        "by",
        "if",
        "caller",
        "&&",
        "||",
        "==",
        "<",
        "-",
        "->",
        "*",
        "/",
        "0",
        "18446744073709551615",
        "é\u{202e}",
        ",",
        "\"",
        "\\",
    ];
    let mut state = 7_u64;
    let mut good = 0;
    for _ in 0..50_000 {
        let mut text = String::new();
        for _ in 0..state % 13 {
            state = state
                .wrapping_mul(6_364_136_223_846_793_005)
                .wrapping_add(1);
            text.push_str(PARTS[(state >> 33) as usize % PARTS.len()]);
            text.push_str(if state >> 40 & 1 == 0 { " " } else { "" });
        }
        state = state
            .wrapping_mul(6_364_136_223_846_793_005)
            .wrapping_add(99);
        match Action::parse(&text) {
            Ok(action) => {
                good += 1;
                _ = action.condition.map(|condition| condition.holds(&Call));
            }
            Err(error) => assert!(error.column() <= text.chars().count() + 1),
        }
    }
    assert!(good > 100, "{good}");
}
