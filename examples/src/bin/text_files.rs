//! Tracers by name, and their control by text, as in tracefs.

use fgraph_tracers::control::Control;
use fgraph_tracers::profiler::Profiler;
use fgraph_tracers::registry::{Registry, RegistryError};

#[inline(never)]
fn write_page(number: u32) -> u32 {
    std::hint::black_box(number) + 1
}

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let mut control = Control::new();
    control.write("set_ftrace_filter", "*::write_page")?;
    control.write("current_tracer", "function_graph")?;
    assert_eq!(write_page(1), 2);
    let trace = control.read("trace")?;
    assert!(trace.contains("write_page"), "{trace}");
    control.write("current_tracer", "nop")?;
    for (file, text) in [("no_such_file", "1"), ("current_tracer", "no_such_tracer")] {
        let error = control.write(file, text).unwrap_err().to_string();
        assert!(error.contains("no_such"), "{error}");
    }
    drop(control);

    let mut tracers = Registry::new();
    tracers.register("profile", || Profiler::start("*::write_page"))?;
    let twice = tracers.register("profile", || Profiler::start("*::write_page"));
    assert!(matches!(twice, Err(RegistryError::Registered(name)) if name == "profile"));
    assert_eq!((0..10).map(write_page).sum::<u32>(), 55);
    tracers.unregister("profile")?;
    assert_eq!(tracers.names().count(), 0);
    println!("the text files are as in tracefs");
    Ok(())
}
