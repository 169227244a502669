//! A whole library at work, all of its functions traced: SQLite as the distribution ships it.

// Long strings: SQL.

use std::collections::HashMap;
use std::ffi::{CStr, CString, c_char, c_int, c_void};
use std::fmt::Write as _;
use std::ptr;
use std::sync::Mutex;

use fgraph::{Entry, FgraphOps, Return, UserStatus};
use fgraph_needs::{Missing, SQLITE, needs};
use fgraph_scenario::{Library, Paired, numbers, patched, scenario, text};

const OK: c_int = 0;
const CONSTRAINT: c_int = 19;
const ROW: c_int = 100;
const DONE: c_int = 101;
/// `SQLITE_TRANSIENT`: the text is copied.
const TRANSIENT: isize = -1;

type Database = *mut c_void;
type Statement = *mut c_void;
type Context = *mut c_void;
type Value = *mut c_void;
type Called = extern "C" fn(Context, c_int, *mut Value);

macro_rules! api {
    ($($name:ident: fn($($argument:ty),*) $(-> $result:ty)?;)*) => {
        /// The functions of SQLite's interface that are used here.
        struct Api {
            $($name: unsafe extern "C" fn($($argument),*) $(-> $result)?,)*
        }

        impl Api {
            fn of(library: &Library) -> Self {
                // SAFETY: their types.
                unsafe { Self { $($name: library.get(concat!("sqlite3_", stringify!($name))),)* } }
            }
        }
    };
}

api! {
    open: fn(*const c_char, *mut Database) -> c_int;
    close: fn(Database) -> c_int;
    errmsg: fn(Database) -> *const c_char;
    prepare_v2: fn(Database, *const c_char, c_int, *mut Statement, *mut *const c_char) -> c_int;
    step: fn(Statement) -> c_int;
    reset: fn(Statement) -> c_int;
    finalize: fn(Statement) -> c_int;
    bind_int64: fn(Statement, c_int, i64) -> c_int;
    bind_double: fn(Statement, c_int, f64) -> c_int;
    bind_text: fn(Statement, c_int, *const c_char, c_int, isize) -> c_int;
    column_count: fn(Statement) -> c_int;
    column_text: fn(Statement, c_int) -> *const c_char;
    column_double: fn(Statement, c_int) -> f64;
    changes: fn(Database) -> c_int;
    create_function: fn(
        Database, *const c_char, c_int, c_int, *mut c_void,
        Option<Called>, Option<Called>, Option<extern "C" fn(Context)>
    ) -> c_int;
    user_data: fn(Context) -> *mut c_void;
    value_int64: fn(Value) -> i64;
    value_text: fn(Value) -> *const c_char;
    result_int64: fn(Context, i64);
    result_error: fn(Context, *const c_char, c_int);
}

/// A function of SQL: the digits of a number, multiplied by the length of a text. It asks SQLite
/// again.
extern "C" fn weight(context: Context, count: c_int, values: *mut Value) {
    // SAFETY: called by SQLite with as many values, and with what was given as user data.
    unsafe {
        let api = &*with_user_data(context);
        assert_eq!(count, 2);
        let number = (api.value_int64)(*values);
        let text = CStr::from_ptr((api.value_text)(*values.add(1)));
        if number < 0 {
            return (api.result_error)(context, c"no weight below zero".as_ptr(), -1);
        }
        let digits: i64 = number
            .to_string()
            .bytes()
            .map(|byte| i64::from(byte - b'0'))
            .sum();
        (api.result_int64)(context, digits * text.to_bytes().len() as i64);
    }
}

static USER_DATA: Mutex<Option<unsafe extern "C" fn(Context) -> *mut c_void>> = Mutex::new(None);

/// # Safety
///
/// To be called from a function of SQL that was created with an [`Api`].
unsafe fn with_user_data(context: Context) -> *const Api {
    let user_data = USER_DATA.lock().unwrap().unwrap();
    // SAFETY: the caller vouches for the context.
    unsafe { user_data(context) }.cast_const().cast()
}

/// A database in memory.
struct Connection<'a> {
    api: &'a Api,
    database: Database,
    /// All results so far.
    answers: Vec<String>,
}

impl<'a> Connection<'a> {
    fn open(api: &'a Api) -> Self {
        let mut database = ptr::null_mut();
        // SAFETY: a string, and a place for the result.
        let result = unsafe { (api.open)(c":memory:".as_ptr(), &mut database) };
        assert_eq!(result, OK);
        Self {
            api,
            database,
            answers: Vec::new(),
        }
    }

    fn message(&self) -> String {
        // SAFETY: an open database; the message is a string.
        let message = unsafe { CStr::from_ptr((self.api.errmsg)(self.database)) };
        message.to_string_lossy().into_owned()
    }

    fn prepare(&self, sql: &str) -> Result<Statement, String> {
        let sql = CString::new(sql).unwrap();
        let mut statement = ptr::null_mut();
        // SAFETY: a string, and a place for the result.
        let result = unsafe {
            (self.api.prepare_v2)(
                self.database,
                sql.as_ptr(),
                -1,
                &mut statement,
                ptr::null_mut(),
            )
        };
        match result {
            OK => Ok(statement),
            error => Err(format!("{error}: {}", self.message())),
        }
    }

    /// Runs a statement and notes every row, and how it ended.
    fn run(&mut self, sql: &str) {
        let statement = match self.prepare(sql) {
            Ok(statement) => statement,
            Err(error) => return self.answers.push(format!("{sql}: {error}")),
        };
        loop {
            // SAFETY: a prepared statement.
            match unsafe { (self.api.step)(statement) } {
                ROW => {
                    // SAFETY: there is a row.
                    let row = unsafe { self.row(statement) };
                    self.answers.push(row);
                }
                DONE => break self.answers.push("done".to_owned()),
                error => {
                    let message = self.message();
                    break self.answers.push(format!("{error}: {message}"));
                }
            }
        }
        // SAFETY: not used any more.
        unsafe { (self.api.finalize)(statement) };
        // SAFETY: an open database.
        let changes = unsafe { (self.api.changes)(self.database) };
        self.answers.push(format!("{changes} changes"));
    }

    /// # Safety
    ///
    /// The statement must have a row.
    unsafe fn row(&self, statement: Statement) -> String {
        let mut row = String::new();
        // SAFETY: the caller vouches for the row; the columns are those that it has.
        unsafe {
            for column in 0..(self.api.column_count)(statement) {
                let float = (self.api.column_double)(statement, column);
                let text = (self.api.column_text)(statement, column);
                let text = if text.is_null() {
                    "null".into()
                } else {
                    CStr::from_ptr(text).to_string_lossy()
                };
                let _ = write!(row, "{text} {:x}|", float.to_bits());
            }
        }
        row
    }

    /// Inserts rows with one prepared statement.
    fn insert(&mut self, rows: i64) {
        let statement = self
            .prepare("insert into item (id, owner, price, name) values (?1, ?2, ?3, ?4)")
            .unwrap();
        for id in 0..rows {
            let name = CString::new(format!("item {} of {}", id * 7 % 1_000, id % 97)).unwrap();
            // SAFETY: a prepared statement with four parameters; the text is copied.
            unsafe {
                assert_eq!((self.api.bind_int64)(statement, 1, id), OK);
                assert_eq!((self.api.bind_int64)(statement, 2, id % 50), OK);
                assert_eq!((self.api.bind_double)(statement, 3, id as f64 * 0.37), OK);
                assert_eq!(
                    (self.api.bind_text)(statement, 4, name.as_ptr(), -1, TRANSIENT),
                    OK
                );
                assert_eq!((self.api.step)(statement), DONE);
                assert_eq!((self.api.reset)(statement), OK);
            }
        }
        // The same key again.
        // SAFETY: as above.
        unsafe {
            assert_eq!((self.api.bind_int64)(statement, 1, 1), OK);
            assert_eq!((self.api.step)(statement), CONSTRAINT);
            let message = self.message();
            self.answers.push(message);
            assert_eq!((self.api.reset)(statement), CONSTRAINT);
            (self.api.finalize)(statement);
        }
    }
}

/// Uses a database as a program does, and returns all results.
fn work(api: &Api, rows: i64) -> Vec<String> {
    let mut connection = Connection::open(api);
    // SAFETY: a string, and functions of the right types; the interface outlives the database.
    let created = unsafe {
        (api.create_function)(
            connection.database,
            c"weight".as_ptr(),
            2,
            // SQLITE_UTF8
            1,
            ptr::from_ref(api).cast_mut().cast(),
            Some(weight),
            None,
            None,
        )
    };
    assert_eq!(created, OK);
    for sql in [
        "create table owner (id integer primary key, name text not null collate nocase)",
        "create table item (id integer primary key, owner integer references owner (id), \
         price real check (price >= 0), name text)",
        "create index item_by_name on item (name)",
        "create index item_by_owner on item (owner, price desc)",
        "create trigger renamed after update of name on owner begin \
         update item set name = new.name || ': ' || name where owner = new.id and id < 200; end",
        "create view dear as select * from item where price > 3000",
        "with recursive n (x) as (select 0 union all select x + 1 from n where x < 49) \
         insert into owner select x, printf('owner %03d', x) from n",
        "begin",
    ] {
        connection.run(sql);
    }
    connection.insert(rows);
    for sql in [
        "commit",
        "select count(*), sum(price), avg(price), min(name), max(name), total(id) from item",
        "select owner.name, count(*), sum(price) from item join owner on owner.id = item.owner \
         group by owner.id having count(*) > 10 order by 3 desc, 1 limit 20",
        "select a.id, b.id from item a left join item b on b.id = a.id + 9990 where a.id < 20",
        "select upper(name), length(name), substr(name, 2, 4), replace(name, 'item', 'thing'), \
         instr(name, 'of'), hex(name), trim(name, 'i'), quote(name), round(price, 1), \
         coalesce(null, price), typeof(price), printf('%08.3f|%-10s|%x', price, name, id), \
         name glob '*7*', name like 'ITEM 1%' from item where id % 501 = 3 order by name",
        "select sum(weight(id, name)), max(weight(id, name)) from item",
        "select weight(-1, 'x')",
        "select id, weight(id, name) as w from item order by w desc, id limit 10",
        "select name, row_number() over (partition by owner order by price), \
         lag(id, 1, -1) over (order by id) from item where owner < 3 limit 30",
        "select group_concat(name, ',') from (select distinct name from item order by name limit 9)",
        "select date('2024-02-29', '+1 year'), strftime('%Y %j %W', 86400 * 365.25, 'unixepoch'), \
         julianday('2000-01-01 12:00')",
        "select abs(-7.5), 7 / 2, 7 % 3, 1e300 * 1e10, 5 << 3, ~0, 'a' || 'b', null is null, \
         cast('12abc' as integer), 9223372036854775807 + 1",
        "update owner set name = upper(name) where id in (select owner from item where id % 777 = 0)",
        "delete from item where id in (select id from dear where id % 2)",
        "savepoint s",
        "delete from item",
        "rollback to s",
        "release s",
        "explain query plan select * from item where owner = 3 and price > 5 order by price",
        "analyze",
        "reindex",
        "vacuum",
        "select * from no_such_table",
        "select from",
        "insert into item values (1, 2, -3, 'x')",
        "pragma integrity_check",
        "pragma foreign_key_check",
        "select count(*), sum(id), sum(length(name)) from item",
    ] {
        connection.run(sql);
    }
    // SAFETY: no statement is left.
    assert_eq!(unsafe { (api.close)(connection.database) }, OK);
    connection.answers
}

/// Counts entries and returns of each function.
#[derive(Default)]
struct PerFunction(Mutex<HashMap<usize, (u64, u64)>>);

impl FgraphOps for PerFunction {
    type Data = usize;

    fn entry(&self, call: &mut Entry<'_, usize>) -> Option<usize> {
        let function = call.function().address();
        self.0.lock().unwrap().entry(function).or_default().0 += 1;
        Some(function)
    }

    fn ret(&self, _call: &mut Return<'_, usize>, function: usize) {
        self.0.lock().unwrap().entry(function).or_default().1 += 1;
    }
}

fn load() -> Result<(Library, Api), Missing> {
    let library = Library::system(&SQLITE)?;
    let api = Api::of(&library);
    *USER_DATA.lock().unwrap() = Some(api.user_data);
    Ok((library, api))
}

#[scenario]
fn every_function_of_sqlite_is_traced_while_it_works() {
    let (_library, api) = needs!(load());
    // Lazy symbols are bound now.
    let untraced = work(&api, 10_000);
    assert!(
        untraced == work(&api, 10_000),
        "it does not always do the same"
    );
    let find = |part: &str| untraced.iter().any(|answer| answer.contains(part));
    assert!(find("10000 ") && find("UNIQUE constraint failed") && find("no weight below"));
    assert!(find("no such table") && find("syntax error") && find("CHECK constraint"));
    assert!(find("ok 0|"), "integrity_check");
    let before = text("libsqlite3");
    let users = [(); 2]
        .map(|()| fgraph_scenario::register(Paired::default(), ":mod:libsqlite3.so*").unwrap());
    let report = users[0].report().unwrap();
    let (traced, refused) = (report.traced, report.refused.len());
    for refused in &report.refused {
        println!("{refused}");
    }
    println!("{traced} traced, {refused} refused");
    assert!(traced > 1_000, "{traced} traced");
    // The report names each refused function, and they are few.
    assert!(refused * 200 <= traced, "{refused} of {traced} are refused");
    assert_eq!(patched(), traced);
    let answers = work(&api, 10_000);
    for user in &users {
        assert_eq!(user.status(), UserStatus::Active);
        assert_eq!(numbers(user.counters()), [0; 5]);
    }
    let calls = users.map(|user| user.unregister().unwrap().calls());
    assert!(
        answers == untraced,
        "it answers differently when it is traced"
    );
    assert!(calls[0].is_exact(), "{:?}", calls[0]);
    assert_eq!(calls[0], calls[1]);
    assert!(calls[0].entries > 500_000, "{:?}", calls[0]);
    assert_eq!(patched(), 0);
    assert!(text("libsqlite3") == before, "some text is not what it was");
    assert!(work(&api, 1_000) == work(&api, 1_000));
}

#[scenario]
fn each_function_of_sqlite_returns_as_often_as_it_is_entered() {
    let (_library, api) = needs!(load());
    let untraced = work(&api, 500);
    let user = fgraph_scenario::register(PerFunction::default(), "*:mod:libsqlite3.so*").unwrap();
    assert!(work(&api, 500) == untraced);
    let functions = user.unregister().unwrap().0.into_inner().unwrap();
    assert!(functions.len() > 300, "{} functions", functions.len());
    for (function, (entries, returns)) in functions {
        assert_eq!(entries, returns, "at {function:#x}");
    }
}

/// While one thread works, another changes what is traced.
#[scenario]
fn sqlite_works_while_its_functions_are_patched() {
    use std::sync::atomic::{AtomicBool, Ordering};
    let (_library, api) = needs!(load());
    let untraced = work(&api, 300);
    let before = text("libsqlite3");
    let done = AtomicBool::new(false);
    std::thread::scope(|scope| {
        let worker = scope.spawn(|| {
            let same = (0..12).all(|_| work(&api, 300) == untraced);
            done.store(true, Ordering::SeqCst);
            same
        });
        while !done.load(Ordering::SeqCst) && !worker.is_finished() {
            let user = fgraph_scenario::register(Paired::default(), ":mod:libsqlite3.so*").unwrap();
            fgraph_scenario::set_filter(&user, "sqlite3_*:mod:libsqlite3.so*").unwrap();
            let calls = user.unregister().unwrap().calls();
            assert_eq!(calls.wrong, 0);
        }
        assert!(worker.join().unwrap());
    });
    assert!(text("libsqlite3") == before, "some text is not what it was");
}
