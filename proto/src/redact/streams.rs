//! `Debug` for messages that carry input and output of a process: sizes only, no content.

use std::fmt;

use crate::v1::{
    AttachRequest, AttachResponse, ConnectPortRequest, ConnectPortResponse, ExecRequest, ExecResponse, ExecStart,
    GetArchiveResponse, PutArchiveRequest, attach_request, attach_response, connect_port_request,
    connect_port_response, exec_request, exec_response, get_archive_response, put_archive_request,
};

impl fmt::Debug for ExecStart {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("ExecStart")
            .field("id", &self.id)
            .field("path", &self.path)
            .field("args", &format_args!("[REDACTED] ({} arguments)", self.args.len()))
            .field("env", &self.env)
            .field("user", &self.user)
            .field("dir", &self.dir)
            .field("terminal", &self.terminal)
            .field("window", &self.window)
            .field("stdin", &self.stdin)
            .field("detached", &self.detached)
            .field("timeout", &self.timeout)
            .field("leave_processes", &self.leave_processes)
            .finish()
    }
}

fn bytes(f: &mut fmt::Formatter<'_>, name: &str, bytes: &[u8]) -> fmt::Result {
    f.debug_tuple(name).field(&format_args!("[REDACTED] ({} bytes)", bytes.len())).finish()
}

macro_rules! message {
    ($message:ty) => {
        impl fmt::Debug for $message {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.debug_struct(stringify!($message)).field("part", &self.part).finish()
            }
        }
    };
}

message!(ExecRequest);
message!(ExecResponse);
message!(AttachRequest);
message!(AttachResponse);
message!(ConnectPortRequest);
message!(ConnectPortResponse);
message!(GetArchiveResponse);
message!(PutArchiveRequest);

impl fmt::Debug for exec_request::Part {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Start(start) => start.fmt(f),
            Self::Stdin(data) => bytes(f, "Stdin", data),
            Self::EndOfInput(end) => end.fmt(f),
            Self::Window(window) => window.fmt(f),
            Self::Signal(signal) => f.debug_tuple("Signal").field(signal).finish(),
            Self::Detach(detach) => detach.fmt(f),
        }
    }
}

impl fmt::Debug for exec_response::Part {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Started(started) => started.fmt(f),
            Self::Stdout(data) => bytes(f, "Stdout", data),
            Self::Stderr(data) => bytes(f, "Stderr", data),
            Self::Exit(exit) => exit.fmt(f),
            Self::Failure(failure) => failure.fmt(f),
        }
    }
}

impl fmt::Debug for attach_request::Part {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Start(start) => start.fmt(f),
            Self::Stdin(data) => bytes(f, "Stdin", data),
            Self::EndOfInput(end) => end.fmt(f),
            Self::Window(window) => window.fmt(f),
        }
    }
}

impl fmt::Debug for attach_response::Part {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Started(started) => started.fmt(f),
            Self::Stdout(data) => bytes(f, "Stdout", data),
            Self::Stderr(data) => bytes(f, "Stderr", data),
            Self::Position(position) => position.fmt(f),
        }
    }
}

impl fmt::Debug for connect_port_request::Part {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Start(start) => start.fmt(f),
            Self::Data(data) => bytes(f, "Data", data),
            Self::End(end) => end.fmt(f),
        }
    }
}

impl fmt::Debug for connect_port_response::Part {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Started(started) => started.fmt(f),
            Self::Data(data) => bytes(f, "Data", data),
            Self::End(end) => end.fmt(f),
        }
    }
}

impl fmt::Debug for get_archive_response::Part {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Stat(stat) => stat.fmt(f),
            Self::Data(data) => bytes(f, "Data", data),
        }
    }
}

impl fmt::Debug for put_archive_request::Part {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Start(start) => start.fmt(f),
            Self::Data(data) => bytes(f, "Data", data),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::v1::EnvironmentVariable;

    /// No value is printed, at any depth of the message.
    #[test]
    fn debug_contains_no_terminal_data() {
        const CANARY: &str = "canary-77aa";
        let variable = EnvironmentVariable { name: "K".into(), value: CANARY.into(), ..EnvironmentVariable::default() };
        let start =
            ExecStart { id: "x".into(), args: vec![CANARY.into()], env: vec![variable], ..ExecStart::default() };
        let all = format!(
            "{:?} {:?} {:?} {:?} {:?} {:?} {:?} {:?} {:?} {:?}",
            ExecRequest { part: Some(exec_request::Part::Start(start)) },
            ExecRequest { part: Some(exec_request::Part::Stdin(CANARY.into())) },
            ExecResponse { part: Some(exec_response::Part::Stdout(CANARY.into())) },
            ExecResponse { part: Some(exec_response::Part::Stderr(CANARY.into())) },
            AttachRequest { part: Some(attach_request::Part::Stdin(CANARY.into())) },
            AttachResponse { part: Some(attach_response::Part::Stdout(CANARY.into())) },
            ConnectPortRequest { part: Some(connect_port_request::Part::Data(CANARY.into())) },
            ConnectPortResponse { part: Some(connect_port_response::Part::Data(CANARY.into())) },
            GetArchiveResponse { part: Some(get_archive_response::Part::Data(CANARY.into())) },
            PutArchiveRequest { part: Some(put_archive_request::Part::Data(CANARY.into())) },
        );
        assert!(all.contains("11 bytes") && !all.contains(CANARY), "{all}");
    }
}
