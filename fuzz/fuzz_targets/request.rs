//! Reads bytes as what a command asks of the agent, as the settings in a program's environment, and
//! as the agent's reply: what is understood is understood again when it is written.

#![no_main]

use fgraph_protocol::{Reply, Request, Settings};

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| {
    if let Some((request, reply)) = Request::parse(bytes) {
        // A path that is not text is left out when it is written.
        let plain = Request::parse(&request.to_bytes(reply)).expect("we have written it");
        let again = Request::parse(&plain.0.to_bytes(plain.1));
        assert_eq!(again, Some(plain));
    }
    if let Some(settings) = str::from_utf8(bytes).ok().and_then(Settings::parse) {
        let plain = Settings::parse(&settings.to_value()).expect("we have written it");
        // Bad words of filters are errors.
        let _ = (
            plain.filter("/bin/program"),
            plain.which.within(),
            plain.which.asked(),
        );
        assert_eq!(Settings::parse(&plain.to_value()), Some(plain));
    }
    if let Some(reply) = Reply::parse(bytes) {
        let plain = Reply::parse(&reply.to_bytes()).expect("we have written it");
        assert_eq!(Reply::parse(&plain.to_bytes()), Some(plain));
    }
});
