//! Messages of JSON-RPC, and what the Model Context Protocol adds to them.

use serde_json::{Map, Value, json};

/// The versions that begin with `initialize`.
const WITH_HANDSHAKE: [&str; 4] = ["2024-11-05", "2025-03-26", "2025-06-18", "2025-11-25"];
/// The version whose requests each name their version.
const WITHOUT_HANDSHAKE: &str = "2026-07-28";

/// Keys of a request's metadata.
const VERSION: &str = "io.modelcontextprotocol/protocolVersion";
const CAPABILITIES: &str = "io.modelcontextprotocol/clientCapabilities";

/// Codes of errors.
const PARSE_ERROR: i64 = -32700;
const INVALID_REQUEST: i64 = -32600;
const METHOD_NOT_FOUND: i64 = -32601;
const INVALID_PARAMS: i64 = -32602;
const UNSUPPORTED_VERSION: i64 = -32022;
const BUSY: i64 = -32000;

/// An error answer.
#[derive(Clone, Debug, PartialEq)]
pub(super) struct Failure {
    code: i64,
    message: String,
    data: Option<Value>,
}

impl Failure {
    fn new(code: i64, message: impl Into<String>) -> Self {
        Self {
            code,
            message: message.into(),
            data: None,
        }
    }

    pub(super) fn parse_error(message: impl Into<String>) -> Self {
        Self::new(PARSE_ERROR, message)
    }

    pub(super) fn invalid_request(message: impl Into<String>) -> Self {
        Self::new(INVALID_REQUEST, message)
    }

    pub(super) fn unknown_method(method: &str) -> Self {
        Self::new(METHOD_NOT_FOUND, format!("there is no method '{method}'"))
    }

    pub(super) fn invalid_params(message: impl Into<String>) -> Self {
        Self::new(INVALID_PARAMS, message)
    }

    pub(super) fn busy(message: impl Into<String>) -> Self {
        Self::new(BUSY, message)
    }

    fn unsupported_version(requested: &Value) -> Self {
        let supported: Vec<&str> = versions().collect();
        Self {
            data: Some(json!({ "requested": requested, "supported": supported })),
            ..Self::new(UNSUPPORTED_VERSION, "unsupported protocol version")
        }
    }

    /// Returns the answer to the request with this id, which is null if it is unknown.
    pub(super) fn answer(&self, id: &Value) -> Value {
        let mut error = json!({ "code": self.code, "message": self.message });
        if let Some(data) = &self.data {
            error["data"] = data.clone();
        }
        json!({ "jsonrpc": "2.0", "id": id, "error": error })
    }
}

/// Iterates over all versions that are served, oldest first.
pub(super) fn versions() -> impl Iterator<Item = &'static str> {
    WITH_HANDSHAKE.into_iter().chain([WITHOUT_HANDSHAKE])
}

/// Chooses the version for a client that asks for this one in `initialize`.
pub(super) fn negotiated(params: &Map<String, Value>) -> Result<&'static str, Failure> {
    let asked = params.get("protocolVersion").and_then(Value::as_str);
    let asked = asked.ok_or_else(|| {
        Failure::invalid_params("initialize takes a protocolVersion, such as \"2025-11-25\"")
    })?;
    let [.., newest] = WITH_HANDSHAKE;
    let known = WITH_HANDSHAKE.into_iter().find(|known| *known == asked);
    Ok(known.unwrap_or(newest))
}

/// A message of a client.
#[derive(Clone, Debug, PartialEq)]
pub(super) enum Message {
    Request {
        id: Value,
        method: String,
        params: Map<String, Value>,
    },
    Notification {
        method: String,
        params: Map<String, Value>,
    },
    /// An answer, though nothing was asked.
    Answer,
}

impl Message {
    /// Parses a line; or returns the error, with the id of the request as far as it is known.
    pub(super) fn parse(line: &[u8]) -> Result<Self, (Value, Failure)> {
        let parsed = serde_json::from_slice::<Value>(line).map_err(|error| {
            (
                Value::Null,
                Failure::parse_error(format!("not JSON: {error}")),
            )
        })?;
        let invalid = |id: &Value, why: &str| Err((id.clone(), Failure::invalid_request(why)));
        let mut message = match parsed {
            Value::Object(message) => message,
            Value::Array(_) => {
                return invalid(&Value::Null, "a message is an object; send one in a line");
            }
            _ => return invalid(&Value::Null, "a message is an object"),
        };
        let id = message.remove("id");
        let known = match &id {
            Some(id) if id.is_string() || id.is_i64() || id.is_u64() => id.clone(),
            _ => Value::Null,
        };
        if message.get("jsonrpc").and_then(Value::as_str) != Some("2.0") {
            return invalid(&known, "jsonrpc must be \"2.0\"");
        }
        let method = match message.remove("method") {
            Some(Value::String(method)) => method,
            None if message.contains_key("result") || message.contains_key("error") => {
                return Ok(Self::Answer);
            }
            _ => return invalid(&known, "a request has a method, which is a string"),
        };
        if id.is_some() && known.is_null() {
            return invalid(&known, "an id is a string or an integer");
        }
        let params = match message.remove("params") {
            None => Map::new(),
            Some(Value::Object(params)) => params,
            Some(_) => return Err((known, Failure::invalid_params("params must be an object"))),
        };
        Ok(match known {
            Value::Null => Self::Notification { method, params },
            id => Self::Request { id, method, params },
        })
    }
}

/// The kind of protocol that a request belongs to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Era {
    Handshake,
    /// Each request names its version.
    NoHandshake,
}

impl Era {
    /// Returns the kind of a request, by its metadata.
    pub(super) fn of(params: &Map<String, Value>) -> Result<Self, Failure> {
        let meta = params.get("_meta");
        let Some(version) = meta.and_then(|meta| meta.get(VERSION)) else {
            return Ok(Self::Handshake);
        };
        if version != WITHOUT_HANDSHAKE {
            return Err(Failure::unsupported_version(version));
        }
        let capabilities = meta.and_then(|meta| meta.get(CAPABILITIES));
        match capabilities.is_some_and(Value::is_object) {
            true => Ok(Self::NoHandshake),
            false => Err(Failure::invalid_params(format!(
                "_meta lacks {CAPABILITIES}"
            ))),
        }
    }

    /// Returns the answer to a request. `is_lasting` results may be kept by the client.
    pub(super) fn answer(self, id: &Value, mut result: Value, is_lasting: bool) -> Value {
        if self == Self::NoHandshake {
            result["resultType"] = "complete".into();
            if is_lasting {
                result["ttlMs"] = 3_600_000.into();
                result["cacheScope"] = "private".into();
            }
        }
        json!({ "jsonrpc": "2.0", "id": id, "result": result })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rubbish_is_answered_with_the_id_where_it_is_known() {
        for (line, id, code) in [
            ("", Value::Null, PARSE_ERROR),
            ("{\"jsonrpc\":", Value::Null, PARSE_ERROR),
            ("\u{0}", Value::Null, PARSE_ERROR),
            ("[]", Value::Null, INVALID_REQUEST),
            ("7", Value::Null, INVALID_REQUEST),
            ("{}", Value::Null, INVALID_REQUEST),
            (r#"{"id":7,"method":"ping"}"#, 7.into(), INVALID_REQUEST),
            (r#"{"jsonrpc":"2.0","id":"a"}"#, "a".into(), INVALID_REQUEST),
            (
                r#"{"jsonrpc":"2.0","id":1,"method":5}"#,
                1.into(),
                INVALID_REQUEST,
            ),
            (
                r#"{"jsonrpc":"2.0","id":[1],"method":"ping"}"#,
                Value::Null,
                INVALID_REQUEST,
            ),
            (
                r#"{"jsonrpc":"2.0","id":1,"method":"ping","params":[1]}"#,
                1.into(),
                INVALID_PARAMS,
            ),
        ] {
            let (of, failure) = Message::parse(line.as_bytes()).unwrap_err();
            assert_eq!((of, failure.code), (id, code), "{line}");
        }
        let deep = "[".repeat(100_000);
        let (_, failure) = Message::parse(deep.as_bytes()).unwrap_err();
        assert_eq!(failure.code, PARSE_ERROR);
    }

    #[test]
    fn a_request_without_handshake_names_its_version() {
        let of = |meta: Value| {
            let params = json!({ "_meta": meta });
            Era::of(params.as_object().unwrap())
        };
        assert_eq!(of(json!({ "progressToken": 1 })), Ok(Era::Handshake));
        let whole = json!({ VERSION: WITHOUT_HANDSHAKE, CAPABILITIES: {} });
        assert_eq!(of(whole), Ok(Era::NoHandshake));
        for (meta, code) in [
            (json!({ VERSION: WITHOUT_HANDSHAKE }), INVALID_PARAMS),
            (json!({ VERSION: "1900-01-01" }), UNSUPPORTED_VERSION),
            (json!({ VERSION: 7 }), UNSUPPORTED_VERSION),
        ] {
            assert_eq!(of(meta).unwrap_err().code, code);
        }
    }
}
