mod common;
#[test]
fn zz() {
    let p = std::env::var("LIB").unwrap();
    let _l = common::Library::open(std::path::Path::new(&p));
    let b = common::text("libbefore");
    let f = std::env::var("FILTER").unwrap();
    let h = fgraph::register(common::Paired::default(), f.as_str()).unwrap();
    println!("{:?}", h.report());
    for s in fgraph::sites().unwrap().iter().filter(|s| s.module.contains("before")) { println!("{s} {:x?}", common::code::<5>(s.address as *const ())); }
    let a = common::text("libbefore");
    let base=usize::from_str_radix(a[0].0.split('-').next().unwrap(),16).unwrap();
    for i in 0..a[0].1.len() { if a[0].1[i]!=b[0].1[i] { println!("{:x}: {:x} -> {:x}", base+i, b[0].1[i], a[0].1[i]); } }
    std::process::exit(0);
}
