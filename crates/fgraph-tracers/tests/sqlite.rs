//! SQLite, running a script.

use std::ffi::{CStr, CString, c_char, c_int, c_void};
use std::path::Path;
use std::ptr;

use fgraph_needs::{Missing, SQLITE};

use fgraph_scenario::Library;

/// Statements of the script.
pub(crate) const STATEMENTS: [&CStr; 4] = [
    c"create table numbers (n integer primary key, text)",
    c"with recursive n(i) as (select 1 union all select i + 1 from n where i < 500)
      insert into numbers select i, hex(i * i) || printf('%d', i) from n",
    c"create index by_text on numbers (text)",
    c"select text, count(*) from numbers group by substr(text, 1, 1) order by 2 desc",
];
/// Rows of its result: the texts begin with 3, as digits in hexadecimal do.
pub(crate) const ROWS: u64 = 1;

type Callback =
    unsafe extern "C" fn(*mut c_void, c_int, *mut *mut c_char, *mut *mut c_char) -> c_int;

/// The functions of the library.
pub(crate) struct Sqlite {
    open: unsafe extern "C" fn(*const c_char, *mut *mut c_void) -> c_int,
    exec: unsafe extern "C" fn(
        *mut c_void,
        *const c_char,
        Option<Callback>,
        *mut c_void,
        *mut *mut c_char,
    ) -> c_int,
    close: unsafe extern "C" fn(*mut c_void) -> c_int,
}

unsafe extern "C" fn count(
    rows: *mut c_void,
    _columns: c_int,
    _values: *mut *mut c_char,
    _names: *mut *mut c_char,
) -> c_int {
    // SAFETY: what `run_script` has given.
    unsafe { *rows.cast::<u64>() += 1 };
    0
}

impl Sqlite {
    pub(crate) fn load() -> Result<Self, Missing> {
        let library = Library::system(&SQLITE)?;
        // SAFETY: their types.
        let sqlite = unsafe {
            Self {
                open: library.get("sqlite3_open"),
                exec: library.get("sqlite3_exec"),
                close: library.get("sqlite3_close"),
            }
        };
        // It stays for the whole scenario.
        std::mem::forget(library);
        Ok(sqlite)
    }

    /// Runs the script in a database in memory, and counts the rows that it gives.
    pub(crate) fn run_script(&self) -> u64 {
        self.run_script_in(Path::new(":memory:"))
    }

    /// Runs the script in a new database.
    pub(crate) fn run_script_in(&self, path: &Path) -> u64 {
        let path = CString::new(path.to_str().unwrap()).unwrap();
        let mut database = ptr::null_mut();
        let mut rows = 0_u64;
        // SAFETY: as SQLite documents these.
        unsafe {
            assert_eq!((self.open)(path.as_ptr(), &mut database), 0);
            for statement in STATEMENTS {
                let rows = (&raw mut rows).cast();
                let sql = statement.as_ptr();
                let result = (self.exec)(database, sql, Some(count), rows, ptr::null_mut());
                assert_eq!(result, 0, "{statement:?}");
            }
            assert_eq!((self.close)(database), 0);
        }
        rows
    }
}
