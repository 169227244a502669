//! Tasks of async-std that wait for good.

use std::time::Duration;

async fn read_row(key: u64) -> u64 {
    async_std::task::sleep(Duration::from_secs(10_000)).await;
    key
}

async fn handler(key: u64) -> u64 {
    read_row(key).await + 1
}

/// It is so large that async-task boxes it.
async fn large(key: u64) -> u64 {
    let rows = [key; 1000];
    handler(key).await + rows[key as usize]
}

fn main() {
    let tasks = [
        async_std::task::spawn(handler(1)),
        async_std::task::spawn(large(2)),
    ];
    println!("ready");
    std::io::stdin().read_line(&mut String::new()).unwrap();
    drop(tasks);
}
