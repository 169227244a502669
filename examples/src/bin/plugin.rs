//! A host of plugins: a library is loaded and unloaded again and again, while two users watch it.

use std::ffi::CString;
use std::fs;
use std::process::Command;
use std::sync::atomic::{AtomicU64, Ordering};

use fgraph::{EntryOf, FgraphOps, Function, LibraryEvent, Options};

const ROUNDS: u64 = 50;

#[derive(Default)]
struct Watches {
    calls: AtomicU64,
    selected: AtomicU64,
    loaded: AtomicU64,
    unloaded: AtomicU64,
}

impl FgraphOps for Watches {
    type Data = ();

    fn entry(&self, call: &mut EntryOf<'_, Self>) -> Option<()> {
        self.calls
            .fetch_add(call.arg_as::<u32>(0)?.into(), Ordering::Relaxed);
        None
    }

    fn selected(&self, _function: Function) {
        self.selected.fetch_add(1, Ordering::Relaxed);
    }

    fn library(&self, event: &LibraryEvent<'_>) {
        if event.path.ends_with("plugin.so") {
            let count = if event.is_loaded {
                &self.loaded
            } else {
                &self.unloaded
            };
            count.fetch_add(1, Ordering::Relaxed);
        }
    }
}

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let directory = std::env::temp_dir().join(format!("fgraph-plugin-{}", std::process::id()));
    fs::create_dir(&directory)?;
    let [source, library] = ["plugin.c", "plugin.so"].map(|name| directory.join(name));
    // With room for a jump: `n + 1` alone has four bytes.
    fs::write(
        &source,
        "int plugin_step(int n) { return n > 0 ? n + 1 : 7 * n - 1; }\n",
    )?;
    let mut compiler = Command::new("cc");
    compiler
        .args(["-O2", "-shared", "-fPIC", "-o"])
        .arg(&library)
        .arg(&source);
    match compiler.status() {
        Ok(status) => assert!(status.success()),
        Err(error) => {
            println!("skipped: no C compiler (cc): {error}: install gcc");
            return Ok(());
        }
    }
    let path = CString::new(library.to_str().ok_or("a path in UTF-8")?)?;
    // The functions come later.
    let options = Options::new().allow_no_match();
    let users = [(); 2].map(|()| {
        // SAFETY: atomics only.
        unsafe { fgraph::register_with(Watches::default(), "plugin_*", &options) }
    });
    let [one, other] = users;
    let (one, other) = (one?, other?);
    for _ in 0..ROUNDS {
        // SAFETY: the library has no constructors; the function has this type, and is not called
        // after the library is unloaded.
        unsafe {
            let handle = libc::dlopen(path.as_ptr(), libc::RTLD_NOW);
            assert!(!handle.is_null());
            let step = libc::dlsym(handle, c"plugin_step".as_ptr());
            let step: extern "C" fn(i32) -> i32 = std::mem::transmute(step);
            assert_eq!(step(1), 2);
            assert_eq!(libc::dlclose(handle), 0);
        }
    }
    for user in [one, other] {
        let user = user
            .unregister()
            .map_err(fgraph::UnregisterError::into_error)?;
        let counts = [user.calls, user.selected, user.loaded, user.unloaded];
        assert_eq!(counts.map(AtomicU64::into_inner), [ROUNDS; 4]);
    }
    fs::remove_dir_all(&directory)?;
    println!("{ROUNDS} plugins loaded and unloaded");
    Ok(())
}
