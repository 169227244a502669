//! Parquet: a row for each call, at its end.

use std::io;
use std::sync::Arc;

use fgraph_analysis::calls::{At, Call, Functions, Open, Slot, Visitor};
use fgraph_trace::names::process_id;
use parquet::basic::{Compression, ZstdLevel};
use parquet::data_type::{ByteArray, ByteArrayType, DataType, Int32Type, Int64Type};
use parquet::errors::ParquetError;
use parquet::file::properties::{EnabledStatistics, WriterProperties};
use parquet::file::writer::{SerializedFileWriter, SerializedRowGroupWriter};
use parquet::schema::parser::parse_message_type;

use super::text::Out;
use crate::names::process_name;
use crate::output::{Output, Trace, date, ending_name};

const SCHEMA: &str = "message calls {
    required binary host (UTF8);
    required int32 process (INTEGER(32, false));
    required binary program (UTF8);
    required int32 thread (INTEGER(32, false));
    required binary function (UTF8);
    required binary module (UTF8);
    required int64 start;
    optional int64 duration;
    required int64 self;
    required int32 depth;
    optional binary caller (UTF8);
    required binary ended (UTF8);
}";

/// Number of rows that are held in memory, and written as a group.
const ROWS: usize = 1 << 16;

pub(crate) struct Parquet {
    host: String,
    out: SerializedFileWriter<Out>,
    rows: Vec<Row>,
    /// The latest process, and its name.
    program: Option<(u32, ByteArray)>,
    /// Function and module of each symbol so far.
    names: Vec<(ByteArray, ByteArray)>,
}

struct Row {
    process: u32,
    program: ByteArray,
    thread: u32,
    /// Nanoseconds since 1970.
    start: u64,
    depth: u32,
    /// The function of the call around it.
    caller: Option<Slot>,
    call: Call,
}

impl Parquet {
    pub(crate) fn new(out: Out) -> io::Result<Self> {
        let schema = parse_message_type(SCHEMA).map_err(plain)?;
        let properties = WriterProperties::builder()
            .set_compression(Compression::ZSTD(ZstdLevel::default()))
            .set_statistics_enabled(EnabledStatistics::Chunk)
            .set_created_by(format!("fgraph {}", env!("CARGO_PKG_VERSION")))
            .build();
        let out = SerializedFileWriter::new(out, Arc::new(schema), Arc::new(properties));
        Ok(Self {
            host: String::new(),
            out: out.map_err(plain)?,
            rows: Vec::new(),
            program: None,
            names: Vec::new(),
        })
    }

    fn flush(&mut self, functions: &Functions) -> Result<(), ParquetError> {
        let rows = std::mem::take(&mut self.rows);
        if rows.is_empty() {
            return Ok(());
        }
        for symbol in self.names.len()..functions.len() {
            let symbol = symbol as Slot;
            let names = (functions.name(symbol), functions.module_of(symbol));
            self.names.push((names.0.into(), names.1.into()));
        }
        let name = |symbol: Slot| &self.names[symbol as usize];
        let mut columns = Columns(self.out.next_row_group()?);
        columns.texts(&rows, |_| self.host.as_str().into())?;
        columns.ints(&rows, |row| process_id(row.process))?;
        columns.texts(&rows, |row| row.program.clone())?;
        columns.ints(&rows, |row| row.thread)?;
        columns.texts(&rows, |row| name(row.call.slot).0.clone())?;
        columns.texts(&rows, |row| name(row.call.slot).1.clone())?;
        columns.longs(&rows, |row| row.start)?;
        let durations = rows.iter().map(|row| row.call.length());
        columns.optional::<Int64Type>(durations.map(|it| it.map(u64::cast_signed)))?;
        columns.longs(&rows, |row| row.call.own)?;
        columns.ints(&rows, |row| row.depth)?;
        let callers = rows.iter().map(|row| row.caller);
        let callers = callers.map(|it| it.map(|caller| name(caller).0.clone()));
        columns.optional::<ByteArrayType>(callers)?;
        columns.texts(&rows, |row| ending_name(row.call.ending).into())?;
        columns.0.close().map(drop)
    }
}

/// Columns of some rows, in the order of the schema.
struct Columns<'a>(SerializedRowGroupWriter<'a, Out>);

impl Columns<'_> {
    fn put<T: DataType>(
        &mut self,
        values: &[T::T],
        levels: Option<&[i16]>,
    ) -> Result<(), ParquetError> {
        let Some(mut column) = self.0.next_column()? else {
            return Err(ParquetError::General("there are too many columns".into()));
        };
        column.typed::<T>().write_batch(values, levels, None)?;
        column.close()
    }

    fn optional<T: DataType>(
        &mut self,
        values: impl Iterator<Item = Option<T::T>>,
    ) -> Result<(), ParquetError> {
        let all: Vec<Option<T::T>> = values.collect();
        let levels: Vec<i16> = all.iter().map(|value| value.is_some().into()).collect();
        let values: Vec<T::T> = all.into_iter().flatten().collect();
        self.put::<T>(&values, Some(&levels))
    }

    fn texts(&mut self, rows: &[Row], of: impl Fn(&Row) -> ByteArray) -> Result<(), ParquetError> {
        let values: Vec<ByteArray> = rows.iter().map(of).collect();
        self.put::<ByteArrayType>(&values, None)
    }

    fn ints(&mut self, rows: &[Row], of: impl Fn(&Row) -> u32) -> Result<(), ParquetError> {
        let values: Vec<i32> = rows.iter().map(|row| of(row).cast_signed()).collect();
        self.put::<Int32Type>(&values, None)
    }

    fn longs(&mut self, rows: &[Row], of: impl Fn(&Row) -> u64) -> Result<(), ParquetError> {
        let values: Vec<i64> = rows.iter().map(|row| of(row).cast_signed()).collect();
        self.put::<Int64Type>(&values, None)
    }
}

/// Returns the system's error alone, if it is one.
fn plain(error: ParquetError) -> io::Error {
    match error {
        ParquetError::External(error) => match error.downcast::<io::Error>() {
            Ok(error) => *error,
            Err(other) => io::Error::other(other),
        },
        other => io::Error::other(other),
    }
}

impl Visitor for Parquet {
    type Error = io::Error;

    fn enter(&mut self, _: &At<'_>, _: &Open) -> io::Result<()> {
        Ok(())
    }

    fn exit(&mut self, at: &At<'_>, call: &Call) -> io::Result<()> {
        let process = at.thread.process;
        let program = match &self.program {
            Some((known, name)) if *known == process => name.clone(),
            _ => {
                let name: ByteArray = process_name(at.names, process).as_str().into();
                self.program = Some((process, name.clone()));
                name
            }
        };
        self.rows.push(Row {
            process,
            program,
            thread: at.thread.id,
            start: date(at.clock, call.begin),
            depth: at.around.len() as u32,
            caller: at.around.last().map(|call| call.data),
            call: *call,
        });
        if self.rows.len() >= ROWS {
            self.flush(at.functions).map_err(plain)?;
        }
        Ok(())
    }
}

impl Output for Parquet {
    fn set_host(&mut self, host: &str) {
        self.host = host.to_owned();
    }

    fn finish(mut self: Box<Self>, trace: &Trace<'_>) -> io::Result<()> {
        self.flush(trace.functions).map_err(plain)?;
        let mut out = self.out.into_inner().map_err(plain)?;
        io::Write::flush(&mut out)
    }
}
