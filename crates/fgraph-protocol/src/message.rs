//! The encoding of messages.

use serde::Serialize;
use serde::de::DeserializeOwned;

/// Start of the messages that this version can read. JSON follows.
const VERSION: &str = "fgraph 3 ";

/// Encodes a message to the agent.
pub(crate) fn encode(message: &impl Serialize) -> String {
    let json = serde_json::to_string(message);
    // Paths are the only values that JSON may lack a form for, and the settings leave those out.
    VERSION.to_owned() + &json.unwrap_or_default()
}

/// Decodes a message. `None` if it is of another version, or is no such message.
pub(crate) fn decode<T: DeserializeOwned>(text: &str) -> Option<T> {
    serde_json::from_str(text.strip_prefix(VERSION)?).ok()
}
