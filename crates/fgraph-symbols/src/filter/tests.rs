use super::*;
use std::panic;

const APP: &str = "/usr/bin/app";
const LIBC: &str = "/lib/x86_64-linux-gnu/libc.so.6";

fn parse(text: &str) -> Filter {
    text.parse().unwrap()
}

fn matches(filter: &Filter, name: &str, module: &str) -> bool {
    filter.matches(&FunctionFacts::new(&[name], module))
}

fn sources(text: &str) -> Vec<&str> {
    let words = words(text).unwrap().into_iter();
    words.map(|word| word.source).collect()
}

fn glob(glob: &str, name: &str) -> bool {
    matches(&Filter::none().trace(glob).unwrap(), name, APP)
}

#[test]
fn notrace_wins() {
    let filter = parse("!foo_slow foo* foo_slow");
    assert!(matches(&filter, "foo_fast", APP));
    assert!(!matches(&filter, "foo_slow", APP));
    assert!(!matches(&filter, "bar", APP));
}

#[test]
fn globs_match_the_whole_name() {
    assert!(glob("foo", "foo"));
    assert!(!glob("foo", "foo2"));
    assert!(!glob("foo", "afoo"));
    assert!(glob("foo*", "foo") && glob("foo*", "foo2") && !glob("foo*", "afoo"));
    assert!(glob("*foo", "foo") && glob("*foo", "foofoo") && !glob("*foo", "foo2"));
    assert!(glob("*foo*", "a foo b") && !glob("*foo*", "fo o"));
    assert!(glob("a*b", "ab") && glob("a*b", "axbxb") && !glob("a*b", "axbx"));
    assert!(glob("a*b*c*", "a1b2b3c") && !glob("a*b*c", "acb"));
    assert!(glob("*", "") && glob("**", "x") && !glob("?*", ""));
}

#[test]
fn star_crosses_path_separators() {
    assert!(glob("core::*::fmt", "core::fmt::num::imp::fmt"));
    assert!(glob("*::new", "alloc::vec::Vec<T>::new"));
}

#[test]
fn question_mark_is_one_character_not_one_byte() {
    assert!(glob("na?ve", "naïve"));
    assert!(glob("?", "→"));
    assert!(!glob("na??ve", "naïve"));
    assert!(glob("*?é", "日é"));
}

#[test]
fn backslash_takes_the_next_character_literally() {
    assert!(glob(r"a\*b", "a*b"));
    assert!(!glob(r"a\*b", "axb"));
    assert!(glob(r"\\\?", r"\?"));
    assert!(matches(&parse(r"a\ b\,c"), "a b,c", APP));
}

#[test]
fn brackets_are_ordinary_characters() {
    let name = "<[u8] as core::fmt::Debug>::fmt";
    assert!(glob("<[u8] as *", name));
    assert!(!glob("<[u]8 as *", name));
}

#[test]
fn builder_takes_names_with_spaces_and_commas_verbatim() {
    let name = "<std::collections::HashMap<K, V> as app::mod::Get>::get";
    assert!(glob(name, name));
}

#[test]
fn module_globs_see_the_file_name() {
    let filter = parse("*alloc:mod:libc.so*");
    assert!(matches(&filter, "malloc", LIBC));
    assert!(!matches(&filter, "free", LIBC));
    assert!(!matches(&filter, "malloc", APP));
    assert!(matches(&parse(":mod:app"), "main", "app"));
}

#[test]
fn module_globs_with_a_slash_see_the_whole_path() {
    assert!(matches(&parse(":mod:/lib/*"), "free", LIBC));
    assert!(!matches(&parse(":mod:/libc.so*"), "free", LIBC));
    assert!(matches(&parse(":mod:*/libc.so*"), "free", LIBC));
}

#[test]
fn words_add_up() {
    let filter = parse("main,:mod:libc.so*\t!mem*:mod:libc*");
    assert!(matches(&filter, "main", APP));
    assert!(!matches(&filter, "other", APP));
    assert!(matches(&filter, "free", LIBC));
    assert!(!matches(&filter, "memcpy", LIBC));
}

#[test]
fn colons_of_a_path_are_no_module_mark() {
    let filter = parse("app::mod::run:mod:app");
    assert!(matches(&filter, "app::mod::run", APP));
    assert!(!matches(&filter, "app::mod::run", LIBC));
}

#[test]
fn whole_modules_can_be_skipped() {
    assert!(Filter::all().module_may_match(LIBC));
    assert!(parse("foo").module_may_match(LIBC));
    assert!(!parse("foo:mod:app").module_may_match(LIBC));
    assert!(parse("foo:mod:app bar").module_may_match(LIBC));
    assert!(!parse("!:mod:libc*").module_may_match(LIBC));
    assert!(!parse("!*").module_may_match(LIBC));
    assert!(parse("!free:mod:libc*").module_may_match(LIBC));
}

#[test]
fn a_module_that_may_not_match_never_matches() {
    for text in [
        "*",
        "a",
        "!a",
        "a:mod:app",
        "!:mod:lib*",
        ":mod:app !*",
        "!*:mod:app",
    ] {
        let filter = parse(text);
        for module in [APP, LIBC] {
            if !filter.module_may_match(module) {
                assert!(!matches(&filter, "a", module), "{text} {module}");
            }
        }
    }
}

#[test]
fn a_missing_part_selects_everything() {
    for filter in [Filter::all(), parse("*")] {
        assert!(matches(&filter, "anything", APP) && matches(&filter, "", ""));
        assert_eq!(filter, Filter::all());
        assert_eq!(filter.to_string(), "*");
    }
    assert!(matches(&parse("!b"), "a", APP));
}

#[test]
fn all_stays_everything_but_for_what_is_taken_away() {
    let filter = Filter::all().name("a").unwrap();
    assert!(matches(&filter, "a", APP) && matches(&filter, "b", APP));
    let filter = filter.notrace("b").unwrap();
    assert!(matches(&filter, "a", APP) && !matches(&filter, "b", APP));
}

#[test]
fn none_is_nothing_until_something_is_traced() {
    assert!(!matches(&Filter::none(), "anything", APP));
    assert!(!Filter::none().module_may_match(APP));
    assert_eq!(Filter::none().to_string(), "!*");
    assert_eq!(parse("!*"), Filter::none());
    let one = Filter::none().name("a*").unwrap();
    assert!(matches(&one, "a*", APP) && !matches(&one, "ab", APP));
}

#[test]
fn a_function_is_known_by_all_its_names() {
    let names = ["__close", "close", "close@@GLIBC_2.2.5"];
    let close = FunctionFacts::new(&names, LIBC);
    for text in ["close", "__close", "close@*", "close:mod:libc.so*", "*"] {
        assert!(parse(text).matches(&close), "{text}");
    }
    for text in ["clos", "* !close", "!__*", "* !close@*"] {
        assert!(!parse(text).matches(&close), "{text}");
    }
    let nameless = FunctionFacts::new(&[], APP);
    assert!(parse("*").matches(&nameless) && !parse("?*").matches(&nameless));
}

#[test]
fn names_pasted_from_a_listing_are_one_word() {
    for name in [
        "<app::Sq as app::Shape>::area",
        "<std::collections::HashMap<K, V> as app::Get>::get",
        "<[u8] as core::fmt::Debug>::fmt",
        "core::ops::function::FnOnce::call_once<fn(i32, u8) -> (u8, i32), (A, B)>",
        r#"<extern "C" fn() as app::Call>::call"#,
        "(anonymous namespace)::f",
        "app::Point::{impl#0}::new",
    ] {
        assert_eq!(sources(&format!("a {name}, b")), ["a", name, "b"]);
        assert!(matches(&parse(&format!("a {name}")), name, APP), "{name}");
        assert!(!matches(&parse(&format!("!{name}:mod:app")), name, APP));
        assert_eq!(parse(name).to_string(), name);
    }
}

#[test]
fn brackets_without_a_partner_are_characters() {
    for text in [
        "operator< a b",
        "a> b",
        "operator<< operator<=",
        "ns::A::operator-> b",
        r"\< a \>",
        ") ( x",
        "[a b",
    ] {
        let expected: Vec<_> = text.split(' ').collect();
        assert_eq!(sources(text), expected);
    }
    assert_eq!(sources("x<(a, b> c"), ["x<(a, b>", "c"]);
    assert_eq!(sources("<<<a b> c"), ["<<<a b>", "c"]);
}

#[test]
fn nothing_is_special_within_quotes() {
    let name = r#"std::operator<< <a *\", 0x1>"#;
    let filter = parse(r#"x "std::operator<< <a *\\\", 0x1>":mod:app !"y z""#);
    assert!(matches(&filter, name, APP) && !matches(&filter, name, LIBC));
    assert!(!matches(&filter, "y z", APP));
    assert!(matches(&parse(r#""a b"*"#), "a bc", APP));
    assert!(matches(&parse(r#""0x12""#), "0x12", APP));
    assert!(matches(&parse(r#""+""#), "+", APP));
    assert!(matches(&parse(r#"":mod:x""#), ":mod:x", APP));
}

#[test]
fn symbols_are_found_by_their_mangled_name() {
    let symbol = "_ZN3app3run17h0123456789abcdefE";
    let run = FunctionFacts::new(&["app::run"], APP);
    let (this, other) = ([symbol], ["_ZN3app3run17hfedcba9876543210E"]);
    let filter = parse(&format!("{symbol}:mod:app"));
    assert!(filter.matches(&run.with_symbols(&this)));
    assert!(!filter.matches(&run.with_symbols(&other)));
    assert_eq!(filter.to_string(), format!("{symbol}:mod:app"));
    // A name that is not mangled is a name as any other.
    assert!(matches(&parse("_Zebra"), "_Zebra", APP));
}

#[test]
fn addresses_are_those_of_beginnings() {
    let names = ["f"];
    let at = |address| FunctionFacts::new(&names, APP).with_place(address, 16);
    let filter = parse("0x1000 0x2000..0x2010 !0x2008");
    let selected = [0x1000, 0x2000, 0x200f];
    for address in [
        0xfff, 0x1000, 0x1001, 0x1fff, 0x2000, 0x2008, 0x200f, 0x2010,
    ] {
        let expected = selected.contains(&address);
        assert_eq!(filter.matches(&at(address)), expected, "{address:#x}");
    }
    let built = Filter::none().address(0x1000).range(0x2000..0x2010);
    assert_eq!(built.unwrap().to_string(), "0x1000 0x2000..0x2010");
    let in_app = Filter::none().address_in(0x1000, APP).unwrap();
    assert!(in_app.matches(&at(0x1000)));
    assert!(!in_app.matches(&FunctionFacts::new(&names, LIBC).with_place(0x1000, 16)));
    let addresses: Vec<_> = in_app
        .addresses()
        .map(|(at, is_in)| (at, is_in(APP), is_in(LIBC)))
        .collect();
    assert_eq!(addresses, [(0x1000, true, false)]);
}

#[test]
fn predicates_see_what_is_known_of_a_function() {
    let filter = Filter::none().predicate(|function| {
        assert_eq!(function.name(), "a");
        assert_eq!(function.names(), ["a", "b"]);
        assert_eq!(function.symbols(), ["_a"]);
        assert_eq!(function.module(), APP);
        function.address() + function.size() == 7
    });
    let function = FunctionFacts::new(&["a", "b"], APP).with_symbols(&["_a"]);
    assert!(filter.matches(&function.with_place(3, 4)));
    assert!(!filter.matches(&function.with_place(3, 5)));
    assert_eq!(filter.clone(), filter);
    assert_ne!(filter, Filter::none().predicate(|_| true));
    let text = filter.to_string();
    assert_eq!(text.parse::<Filter>(), Err(FilterError::PredicateAsText));
}

#[test]
fn a_predicate_that_panics_is_an_error_that_says_where() {
    let texts: [(fn(), &str); 3] = [
        (|| panic!("no {}", "luck"), "no luck"),
        (|| panic!("static"), "static"),
        (|| panic::panic_any(7), "a value that is no text"),
    ];
    for (throw, message) in texts {
        let filter = Filter::none().predicate(move |function| {
            if function.name() == "bad" {
                throw();
            }
            true
        });
        let matcher = Matcher::new(&filter);
        let module = matcher.module(APP).unwrap();
        let answer = |name| module.matches(&FunctionFacts::new(&[name], APP));
        assert_eq!(answer("good"), Ok(true));
        let error = FilterError::PredicatePanicked {
            function: "bad".into(),
            message: message.into(),
        };
        assert!(error.to_string().contains("`bad`") && error.to_string().contains(message));
        assert_eq!(answer("bad"), Err(error));
    }
}

#[test]
fn unions_match_what_either_matches() {
    let filter = parse("a* !ab")
        .union(parse("ab*:mod:app !abc"))
        .union(parse("x"));
    for (name, expected) in [
        ("a", true),
        ("ab", true),
        ("abc", true),
        ("x", true),
        ("y", false),
    ] {
        assert_eq!(matches(&filter, name, APP), expected, "{name}");
    }
    assert!(!matches(&filter, "ab", LIBC) && matches(&filter, "abc", LIBC));
    assert_eq!(filter.to_string(), "a* !ab + ab*:mod:app !abc + x");
    assert_eq!(parse("a + b"), parse("a b"));
    assert_eq!(Filter::none().union(parse("a")), parse("a"));
    assert!(matches(&parse("a").union(Filter::all()), "b", APP));
}

#[test]
fn text_round_trips() {
    for text in [
        "*",
        "!*",
        "foo* !bar :mod:libc.so* a?b:mod:*/x !:mod:app",
        r"\!not a\ b\,c x\*y\? \\ a\:mod:b a::mod::b",
        "* + a + !b + c !d",
        r#""a b" <a, b> operator< operator> "<" \< \" 0x10 0x10..0x20 "0x""#,
        r#"a\+ "+" \+ <a*, b> <a*\ b a\(\ b"#,
        "0x10:mod:app !0x20:mod:app",
        "_ZN3app3run17h0123456789abcdefE",
    ] {
        let filter = parse(text);
        assert_eq!(filter.to_string().parse(), Ok(filter), "{text}");
    }
    let built = Filter::none()
        .trace("!x, y:mod:z a::mod::b:mod:\u{a0}é")
        .and_then(|f| f.notrace("**\\*"))
        .and_then(|f| f.trace_in("a:", ":mod:b"))
        .and_then(|f| f.trace_in("a", ":b"))
        .and_then(|f| f.trace_in("!", "!m"))
        .and_then(|f| f.name("0x12..*"))
        .and_then(|f| f.name(":predicate:"))
        .and_then(|f| f.name("a\"\\ b<"))
        .and_then(|f| f.trace_in("<* b>", "a <b"))
        .unwrap();
    assert_eq!(built.to_string().parse(), Ok(built));
}

#[test]
fn malformed_text_is_refused_with_its_reason() {
    let refused = |text: &str| text.parse::<Filter>().unwrap_err();
    let nothing_behind = |mark, word: &str| FilterError::NothingBehind {
        mark,
        word: word.to_owned(),
    };
    let address = |part: &str, word: &str| FilterError::Address {
        part: part.to_owned(),
        word: word.to_owned(),
    };
    for text in ["", " ", " ,\n"] {
        assert_eq!(refused(text), FilterError::Empty);
    }
    assert_eq!(refused("a ! b"), nothing_behind("!", "!"));
    assert_eq!(refused("a:mod:"), nothing_behind(":mod:", "a:mod:"));
    assert_eq!(refused("!:mod:,x"), nothing_behind(":mod:", "!:mod:"));
    assert_eq!(refused("a +"), nothing_behind("+", "+"));
    assert_eq!(refused("+ a"), FilterError::NothingBefore("+"));
    assert_eq!(refused("a + + b"), FilterError::NothingBefore("+"));
    assert_eq!(refused(r"a\"), FilterError::DanglingBackslash(r"a\".into()));
    assert_eq!(
        refused("a:mod:b:mod:c"),
        FilterError::TwoModules("a:mod:b:mod:c".into())
    );
    assert_eq!(
        refused(r#"a x"b c"#),
        FilterError::UnclosedQuote(r#"x"b c"#.into())
    );
    assert_eq!(
        refused(r#""a\"#),
        FilterError::UnclosedQuote(r#""a\"#.into())
    );
    assert_eq!(refused(r#""""#), FilterError::EmptyGlob);
    assert_eq!(refused("!0x1g:mod:a"), address("0x1g", "!0x1g:mod:a"));
    assert_eq!(refused("0x1..2"), address("2", "0x1..2"));
    assert_eq!(refused("0x"), address("0x", "0x"));
    assert_eq!(refused("0x+1"), address("0x+1", "0x+1"));
    assert_eq!(
        refused("0x12345678123456781"),
        address("0x12345678123456781", "0x12345678123456781")
    );
    assert_eq!(
        refused("0x20..0x20"),
        FilterError::EmptyRange {
            start: 0x20,
            end: 0x20
        }
    );
    assert_eq!(Filter::none().trace(""), Err(FilterError::EmptyGlob));
    assert_eq!(Filter::none().name(""), Err(FilterError::EmptyGlob));
    assert_eq!(
        Filter::none().trace_in("a", ""),
        Err(FilterError::EmptyGlob)
    );
    assert_eq!(
        Filter::none().address_in(1, ""),
        Err(FilterError::EmptyGlob)
    );
    for (text, message) in [
        (
            "a:mod:",
            "nothing follows `:mod:` in the filter word `a:mod:`",
        ),
        ("0x1..2", "`2` in the filter word `0x1..2` is no address"),
        ("", "the filter has no words; `*` matches everything"),
        ("0x20..0x1", "no address is in the filter's 0x20..0x1"),
    ] {
        assert_eq!(refused(text).to_string(), message);
    }
}

#[test]
fn names_may_match_by_any_pattern_of_the_trace_list() {
    let has_abc = |text: &str| "\0abc\0".contains(text);
    let may = |text: &str| {
        let filter = parse(text);
        let matcher = Matcher::new(&filter);
        let module = matcher.module(LIBC);
        module.is_some_and(|module| module.may_select(has_abc, |range| range.contains(&7)))
    };
    assert!(may("*") && may("!abc") && may("x abc") && may("ab* !abc") && may("x + ab*"));
    assert!(!may("b") && !may("ab") && !may("x*") && !may("abc:mod:app") && !may("x + y"));
    assert!(may("0x7") && may("0x1..0x9") && !may("0x6") && !may("0x1..0x7"));
}

/// A pseudorandom number below `end`.
struct Random(u64);

impl Random {
    fn below(&mut self, end: usize) -> usize {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        (self.0 >> 33) as usize % end
    }

    fn of<T: Copy>(&mut self, all: &[T]) -> T {
        all[self.below(all.len())]
    }

    fn name(&mut self) -> String {
        let len = 1 + self.below(6);
        (0..len).map(|_| self.of(&['a', 'b', ':', 'é'])).collect()
    }

    fn part(&mut self, filter: Filter) -> Filter {
        let mut filter = filter;
        for _ in 0..1 + self.below(6) {
            let mut glob = self.name();
            for _ in 0..self.below(3) {
                let at = glob
                    .char_indices()
                    .nth(self.below(2))
                    .map_or(0, |(at, _)| at);
                glob.insert(at, self.of(&['*', '?']));
            }
            let module = self.of(&["app", "libc*", "/*", "x"]);
            let address = self.below(40);
            filter = match self.below(10) {
                0 => Ok(filter.address(address)),
                1 => filter.range(address..address + 1 + self.below(4)),
                2 => Ok(filter.predicate(move |function| function.size() == address % 4)),
                3 => filter.name(&self.name()),
                4 => filter.notrace(&glob),
                5 => filter.notrace_in(&glob, module),
                6 => filter.trace_in(&glob, module),
                7 => filter.name("_ZN1a1b17h0123456789abcdefE"),
                8 => filter.notrace(&self.name()),
                _ => filter.trace(&glob),
            }
            .unwrap();
        }
        filter
    }

    fn filter(&mut self) -> Filter {
        let start = self.of(&[Filter::all, Filter::none]);
        let mut filter = self.part(start());
        for _ in 0..self.below(3) {
            filter = filter.union(self.part(Filter::none()));
        }
        filter
    }
}

/// Names, symbols, address and size.
type Function = (Vec<String>, Vec<&'static str>, usize, usize);

/// A module with functions, and gaps between them.
struct Functions {
    module: &'static str,
    all: Vec<Option<Function>>,
}

impl Functions {
    fn new(module: &'static str, random: &mut Random) -> Self {
        let symbols = ["_ZN1a1b17h0123456789abcdefE", "_ZN1a1b17h0000000000000000E"];
        let mut function = |index| {
            (random.below(8) != 0).then(|| {
                let mut names: Vec<_> = (0..random.below(3)).map(|_| random.name()).collect();
                let mut own = Vec::new();
                if random.below(4) == 0 {
                    names.push("a::b".into());
                    own.push(random.of(&symbols));
                }
                names.sort();
                names.dedup();
                (names, own, index, random.below(4))
            })
        };
        let all = (0..40).map(&mut function).collect();
        Self { module, all }
    }
}

impl Catalog for Functions {
    fn len(&self) -> usize {
        self.all.len()
    }

    fn is_function(&self, index: usize) -> bool {
        self.all[index].is_some()
    }

    fn names(&self, index: usize) -> impl Iterator<Item = &str> {
        let names = self.all[index].iter().flat_map(|(names, ..)| names);
        names.map(String::as_str)
    }

    fn within(&self, addresses: Range<usize>) -> impl Iterator<Item = usize> {
        let all = self.all.iter().enumerate();
        all.filter_map(move |(index, function)| {
            let (.., address, _) = function.as_ref()?;
            addresses.contains(address).then_some(index)
        })
    }

    fn facts<R>(&self, index: usize, with: impl FnOnce(&FunctionFacts<'_>) -> R) -> R {
        let (names, symbols, address, size) = self.all[index].as_ref().unwrap();
        let names: Vec<_> = names.iter().map(String::as_str).collect();
        let facts = FunctionFacts::new(&names, self.module);
        with(&facts.with_symbols(symbols).with_place(*address, *size))
    }
}

/// A module with a function at place 0 and a system call within it at place 1.
struct OneCall;

impl Catalog for OneCall {
    fn len(&self) -> usize {
        2
    }

    fn is_function(&self, index: usize) -> bool {
        index == 0
    }

    fn names(&self, index: usize) -> impl Iterator<Item = &str> {
        (index == 0).then_some("f").into_iter()
    }

    fn within(&self, addresses: Range<usize>) -> impl Iterator<Item = usize> {
        addresses.contains(&8).then_some(0).into_iter()
    }

    fn system_calls(&self) -> impl Iterator<Item = usize> {
        std::iter::once(1)
    }

    fn facts<R>(&self, _index: usize, with: impl FnOnce(&FunctionFacts<'_>) -> R) -> R {
        with(&FunctionFacts::new(&["f"], LIBC).with_place(8, 8))
    }
}

#[test]
fn system_calls_are_selected_by_their_own_word_only() {
    let select = |filter: &LiveFilter| {
        let matcher = Matcher::of_live(filter);
        let mut counts = vec![0; matcher.len()];
        let module = matcher.module(LIBC);
        let found = module.and_then(|module| {
            let mut index = NameIndex::new();
            module.select(&OneCall, &mut index, &mut counts).unwrap()
        });
        found.iter().flat_map(Bits::iter).collect::<Vec<_>>()
    };
    let live = |words: &str| LiveFilter::new(words.parse::<Filter>().unwrap());
    for (words, places) in [
        ("*", &[0][..]),
        ("f", &[0]),
        ("0x8..0x100", &[0]),
        (":syscalls", &[1]),
        (":syscalls:mod:libc.so*", &[1]),
        (":syscalls:mod:other", &[]),
        ("* :syscalls", &[0, 1]),
        (":syscalls f !*", &[]),
        ("f :syscalls !:mod:libc*", &[]),
        ("f :syscalls !f", &[1]),
        ("f :syscalls !:syscalls", &[0]),
    ] {
        assert_eq!(select(&live(words)), places, "{words}");
    }
    // To add everything is to add all functions; to remove it leaves nothing.
    let mut filter = live(":syscalls");
    filter.add("*".parse().unwrap());
    assert_eq!(select(&filter), [0, 1]);
    filter.remove(":syscalls".parse().unwrap());
    assert_eq!(select(&filter), [0]);
    filter.add(":syscalls".parse().unwrap());
    filter.remove(":mod:libc*".parse().unwrap());
    assert_eq!(select(&filter), []);
    filter.add(":syscalls".parse().unwrap());
    assert_eq!(select(&filter), [1]);
    filter.remove("*".parse().unwrap());
    assert_eq!(select(&filter), []);
    // As text it is that word, and a name that looks like it is quoted.
    for text in [":syscalls", ":syscalls:mod:libc*", "\":syscalls\""] {
        assert_eq!(text.parse::<Filter>().unwrap().to_string(), text);
    }
    assert_eq!(
        Filter::none().name(":syscalls").unwrap().to_string(),
        "\":syscalls\""
    );
}

#[test]
#[cfg_attr(miri, ignore = "takes many minutes there")]
fn the_matcher_agrees_with_the_meaning_of_each_word() {
    let mut random = Random(0x1234_5678_9abc_def1);
    let mut selected = [0, 0];
    for _ in 0..600 {
        let functions = Functions::new(random.of(&[APP, LIBC]), &mut random);
        let filter = random.filter();
        let expected: Vec<usize> = (0..functions.len())
            .filter(|&index| functions.is_function(index))
            .filter(|&index| functions.facts(index, |facts| filter.matches(facts)))
            .collect();
        selected[usize::from(expected.is_empty())] += 1;

        let matcher = Matcher::new(&filter);
        let words: Vec<_> = matcher.words().collect();
        let Some(module) = matcher.module(functions.module) else {
            assert_eq!(expected, [], "{filter}");
            continue;
        };
        let mut counts = vec![0; words.len()];
        // The second time with an index that is there.
        let mut index = NameIndex::new();
        for round in 1..=2 {
            let found = module.select(&functions, &mut index, &mut counts).unwrap();
            let found: Vec<_> = found.iter().flat_map(Bits::iter).collect();
            assert_eq!(found, expected, "{filter}");
            for (word, count) in words.iter().zip(&counts) {
                let alone = word.trim_start_matches('!').parse::<Filter>();
                let Ok(alone) = alone else {
                    assert!(word.contains(":predicate:"), "{word}");
                    continue;
                };
                let matches = |&index: &usize| {
                    functions.is_function(index)
                        && functions.facts(index, |facts| alone.matches(facts))
                };
                let alone = (0..functions.len()).filter(matches).count();
                assert_eq!(*count, round * alone, "{word} of {filter}");
            }
        }
        for index in (0..functions.len()).filter(|&index| functions.is_function(index)) {
            let one = functions.facts(index, |facts| module.matches(facts));
            assert_eq!(one, Ok(expected.contains(&index)), "{filter}");
        }
        let contains = |text: &str| {
            (0..functions.len())
                .filter(|&index| functions.is_function(index))
                .any(|index| {
                    let mut names: Vec<_> = functions.names(index).collect();
                    if names.is_empty() {
                        names.push("");
                    }
                    names
                        .iter()
                        .any(|name| format!("\0{name}\0").contains(text))
                })
        };
        let may_match =
            module.may_select(contains, |range| functions.within(range).next().is_some());
        assert!(may_match || expected.is_empty(), "{filter}");
    }
    // Neither is the rule.
    assert!(selected.iter().all(|&count| count > 20), "{selected:?}");
}

#[test]
#[cfg_attr(miri, ignore = "takes many minutes there")]
fn an_index_tells_the_same_whatever_it_was_asked_before() {
    let mut random = Random(0x2468_ace0_1357_9bdf);
    let functions = Functions::new(APP, &mut random);
    let mut index = NameIndex::new();
    let pool: Vec<_> = (0..40).map(|_| random.filter()).collect();
    for _ in 0..400 {
        let filter = &pool[random.below(pool.len())];
        let matcher = Matcher::new(filter);
        let Some(module) = matcher.module(functions.module) else {
            continue;
        };
        let select = |index: &mut NameIndex| {
            let mut counts = vec![0; matcher.len()];
            let found = module.select(&functions, index, &mut counts).unwrap();
            (found, counts)
        };
        assert_eq!(
            select(&mut index),
            select(&mut NameIndex::new()),
            "{filter}"
        );
    }
}

#[test]
#[cfg_attr(miri, ignore = "takes many minutes there")]
fn the_last_addition_or_removal_decides() {
    let mut random = Random(0x0fed_cba9_8765_4321);
    for _ in 0..100 {
        let functions = Functions::new(random.of(&[APP, LIBC]), &mut random);
        let pool: Vec<_> = (0..4).map(|_| random.filter()).collect();
        let of = |filter: &Filter| {
            let mut bits = Bits::new(functions.len());
            for index in (0..functions.len()).filter(|&index| functions.is_function(index)) {
                if functions.facts(index, |facts| filter.matches(facts)) {
                    bits.insert(index);
                }
            }
            bits
        };
        let mut live = LiveFilter::new(pool[0].clone());
        let mut expected = of(&pool[0]);
        for _ in 0..20 {
            let filter = &pool[random.below(pool.len())];
            if random.below(2) == 0 {
                live.add(filter.clone());
                expected.add(&of(filter));
            } else {
                live.remove(filter.clone());
                expected.remove(&of(filter));
            }
            let matcher = Matcher::of_live(&live);
            let mut counts = vec![0; matcher.words().count()];
            let found = matcher.module(functions.module).and_then(|module| {
                let found = module.select(&functions, &mut NameIndex::new(), &mut counts);
                found.unwrap()
            });
            let found: Vec<_> = found.iter().flat_map(Bits::iter).collect();
            assert_eq!(found, expected.iter().collect::<Vec<_>>(), "{live:?}");
        }
    }
}

#[test]
fn a_live_filter_does_not_grow_with_what_is_said_again() {
    let words = |live: &LiveFilter| Matcher::of_live(live).words().collect::<Vec<_>>();
    let mut live = LiveFilter::new(parse("a b"));
    for _ in 0..10 {
        live.add(parse("c !d"));
        live.remove(parse("b"));
        live.remove(parse("c !d"));
        live.add(parse("b c"));
        live.remove(parse("c"));
    }
    assert_eq!(words(&live), ["a", "!c", "!d", "b", "!c"]);
    live.remove(Filter::all());
    assert!(words(&live).is_empty());
    live.add(parse("*"));
    live.add(parse("x"));
    live.add(Filter::all());
    assert_eq!(words(&live), ["*"]);
}

#[test]
fn words_for_everything_mention_everything() {
    let mentions_all = |filter: &str| {
        let filter: Filter = filter.parse().unwrap();
        let matcher = Matcher::new(&filter);
        matcher.module("/bin/app").unwrap().mentions_everything()
    };
    assert!(mentions_all("*"));
    assert!(mentions_all("!*fmt*"));
    assert!(mentions_all(":mod:app !malloc"));
    assert!(mentions_all("a + *"));
    assert!(!mentions_all("a* :mod:libz.so*"));
    assert!(!mentions_all("a* !*:mod:libz.so*"));
}
