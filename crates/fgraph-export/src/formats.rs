//! One file for each format.

mod callgrind;
mod chrome;
mod csv;
mod ctf;
mod firefox;
mod folded;
mod html;
#[cfg(feature = "fleet")]
mod otlp;
#[cfg(feature = "fleet")]
mod parquet;
mod perfetto;
mod pprof;
mod speedscope;
#[cfg(feature = "svg")]
mod svg;
mod text;
mod totals;
mod uftrace;

pub(crate) use self::callgrind::callgrind;
pub(crate) use self::chrome::Chrome;
pub(crate) use self::csv::Csv;
pub(crate) use self::ctf::Ctf;
pub(crate) use self::firefox::Firefox;
pub(crate) use self::folded::folded;
pub(crate) use self::html::Html;
#[cfg(feature = "fleet")]
pub(crate) use self::otlp::Otlp;
#[cfg(feature = "fleet")]
pub(crate) use self::parquet::Parquet;
pub(crate) use self::perfetto::Perfetto;
pub(crate) use self::pprof::pprof;
pub(crate) use self::speedscope::Speedscope;
#[cfg(feature = "svg")]
pub(crate) use self::svg::svg;
pub(crate) use self::text::Out;
pub(crate) use self::totals::Totals;
pub(crate) use self::uftrace::Uftrace;
