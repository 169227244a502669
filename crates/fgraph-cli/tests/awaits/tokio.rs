//! Tasks of tokio that wait for good, in one thread: all are suspended when it says `ready`. With
//! an argument, it waits for a line before it spawns them.

use std::pin::Pin;
use std::rc::Rc;
use std::time::Duration;

use tokio::sync::{Mutex, oneshot};
use tokio::task::yield_now;

type Boxed = Pin<Box<dyn Future<Output = u64> + Send>>;

const LONG: Duration = Duration::from_secs(10_000);

struct Cache;

impl Cache {
    async fn get(&self, key: u64) -> u64 {
        load(key).await + 1
    }
}

async fn load(key: u64) -> u64 {
    tokio::time::sleep(LONG).await;
    key
}

async fn handler(key: u64) -> u64 {
    let cache = Cache;
    cache.get(key).await
}

async fn boxed(key: u64) -> u64 {
    let inner: Boxed = Box::pin(handler(key));
    inner.await
}

async fn joins() {
    let (sender, receiver) = oneshot::channel::<u64>();
    _ = tokio::join!(handler(1), receiver);
    drop(sender);
}

async fn selects() {
    tokio::select! {
        _ = load(1) => {}
        _ = tokio::time::sleep(LONG) => {}
    }
}

async fn locks(mutex: &'static Mutex<u64>) -> u64 {
    *mutex.lock().await
}

async fn follows() -> u64 {
    tokio::spawn(load(2)).await.unwrap()
}

async fn together() {
    let all: futures_util::stream::FuturesUnordered<_> = (0..3).map(handler).collect();
    futures_util::StreamExt::collect::<Vec<u64>>(all).await;
}

async fn returns() -> u64 {
    1
}

async fn local(count: Rc<u64>) -> u64 {
    load(*count).await
}

#[tokio::main(flavor = "current_thread")]
async fn main() {
    let mut line = String::new();
    if std::env::args().len() > 1 {
        println!("started");
        std::io::stdin().read_line(&mut line).unwrap();
    }
    let mutex: &Mutex<u64> = Box::leak(Box::new(Mutex::new(0)));
    let _guard = mutex.lock().await;
    for key in 0..3 {
        tokio::spawn(handler(key));
    }
    tokio::spawn(boxed(1));
    tokio::spawn(joins());
    tokio::spawn(selects());
    tokio::spawn(locks(mutex));
    tokio::spawn(follows());
    tokio::spawn(together());
    // It ends, and its result stays.
    let ended = tokio::spawn(returns());
    let locals = tokio::task::LocalSet::new();
    locals.spawn_local(local(Rc::new(1)));
    locals
        .run_until(async {
            for _ in 0..200 {
                yield_now().await;
            }
        })
        .await;
    println!("ready");
    std::io::stdin().read_line(&mut line).unwrap();
    drop(ended);
    std::process::exit(0);
}
