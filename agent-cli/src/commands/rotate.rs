//! `rotate ID`: replaces secret files of a running container.
//!
//! The request is sent only once: a repeated request would be another update.

use std::ffi::OsString;
use std::io::Read;

use clap::Args;
use executor_cli_kit::failure::Failure;
use executor_cli_kit::session::Session;
use executor_cli_kit::signals;
use executor_cli_kit::source::{self, Argument, Content, Flag};
use executor_cli_kit::status::{self, ErrorContext as _};
use executor_client::v1::UpdateFilesRequest;
use executor_client::{Code, Error, Wiped};

use super::bindings;
use crate::bindings::{Delivery, DeliveryArgs};
use crate::ids;
use crate::view::json;

#[derive(Debug, Args)]
pub(crate) struct RotateArgs {
    /// Id of the container, or a unique prefix
    pub(crate) id: String,
    /// File to replace or add: PATH=@FILE, PATH=@- (standard input) or PATH=@env:VARIABLE, as with `run`
    #[arg(long = "file", value_name = "PATH=SOURCE")]
    pub(crate) files: Vec<String>,
    /// File without a secret, in the same form as --file
    #[arg(long = "public-file", value_name = "PATH=SOURCE")]
    pub(crate) public_files: Vec<String>,
    /// File to remove; can be repeated
    #[arg(long, value_name = "PATH")]
    pub(crate) remove: Vec<String>,
    /// New token for a provider with `auth = "jwt"`, in the same form as with `run`; changes no file
    #[arg(long = "provider-token", value_name = "PROVIDER[/ROLE]=SOURCE")]
    pub(crate) provider_tokens: Vec<String>,
    /// Signal to send to the container's process afterwards: HUP, SIGUSR1, 10
    #[arg(long, value_name = "NAME", value_parser = signals::parse)]
    pub(crate) signal: Option<u32>,
    /// Fail unless this is the current generation, as printed by an earlier `rotate` or `inspect`
    #[arg(long, value_name = "N")]
    pub(crate) expect_generation: Option<u64>,
    #[command(flatten)]
    pub(crate) bindings: DeliveryArgs,
}

/// An update that is ready to be sent.
pub(crate) struct Prepared {
    request: Request,
    delivery: Option<Delivery>,
}

impl RotateArgs {
    /// Reads the inputs that the flags name.
    pub(super) fn prepare(self) -> Result<Prepared, Failure> {
        let others = [
            (Flag::File, &*self.files),
            (Flag::PublicFile, &self.public_files),
            (Flag::ProviderToken, &self.provider_tokens),
        ];
        let delivery = bindings::delivery(&self.bindings, &others)?;
        let request = Request::build(self, &mut std::io::stdin().lock(), &|name| std::env::var_os(name))?;
        Ok(Prepared { request, delivery })
    }
}

struct Request(Wiped<UpdateFilesRequest>);

impl Request {
    /// Reads the sources of the files and builds the request.
    fn build(
        args: RotateArgs,
        stdin: &mut dyn Read,
        variable: &dyn Fn(&str) -> Option<OsString>,
    ) -> Result<Self, Failure> {
        let bindings = args.bindings.from.vcap_services.is_some() || !args.bindings.from.bind.is_empty();
        let flags = [
            (Flag::File, &args.files),
            (Flag::PublicFile, &args.public_files),
            (Flag::ProviderToken, &args.provider_tokens),
        ];
        if flags.iter().all(|(_, texts)| texts.is_empty()) && args.remove.is_empty() && !bindings {
            let why = "rotate takes at least one --file, --public-file, --remove, --provider-token, --vcap-services or --bind";
            return Err(Failure::Usage(why.into()));
        }
        let arguments = flags.into_iter().flat_map(|(flag, texts)| texts.iter().map(move |text| (flag, text)));
        let arguments = arguments.map(|(flag, text)| Argument::parse(flag, text)).collect::<Result<Vec<_>, _>>()?;
        let contents = source::read_all(arguments, stdin, variable)?;
        let (tokens, files): (Vec<Content>, Vec<_>) =
            contents.into_iter().partition(|content| content.flag == Flag::ProviderToken);
        Ok(Self(Wiped::new(UpdateFilesRequest {
            id: args.id,
            files: files.into_iter().map(Content::into_file).collect(),
            provider_tokens: tokens.into_iter().map(Content::into_provider_token).collect::<Result<_, _>>()?,
            removed_paths: args.remove,
            expected_generation: args.expect_generation,
            signal: args.signal.unwrap_or(0),
        })))
    }
}

pub(super) async fn rotate(session: &Session, prepared: Prepared) -> Result<u8, Failure> {
    let Prepared { mut request, delivery } = prepared;
    if let Some(whole) = ids::whole(&session.client, &request.0.id).await? {
        request.0.id = whole;
    }
    let id = request.0.id.clone();
    let answer = match &delivery {
        Some(delivery) => bindings::replace(session, &request.0, delivery).await?,
        None => session.client.update_files(request.0.clone()).await,
    };
    drop((request, delivery));
    let answer = answer.map_err(|error| failure(&id, error))?;
    let container = answer.container.ok_or(Error::Incomplete("the container")).doing(&format!("rotate {id}"))?;
    let document = json::Rotated::from(&container);
    session.print(&document, || format!("{}\n", container.files_generation)).await;
    Ok(0)
}

/// Converts an error of the update to a failure with advice.
fn failure(id: &str, error: Error) -> Failure {
    let advice = match (&error, error.code()) {
        (Error::Lost { .. }, _) => "the generation in `agent-cli inspect` shows whether the files were replaced",
        (_, Some(Code::Aborted)) => {
            "another client or executord has replaced the files: check them with `agent-cli inspect`, then try again"
        }
        (_, Some(Code::FailedPrecondition)) if !error.violations().is_empty() => {
            "`agent-cli inspect` shows where files are mounted"
        }
        _ => "",
    };
    let failure = status::failure(&format!("rotate {id}"), error);
    if advice.is_empty() { failure } else { failure.advise(advice) }
}

#[cfg(test)]
mod tests {
    use super::*;
    use clap::Parser as _;

    fn build(line: &[&str]) -> Result<Request, Failure> {
        let cli = crate::cli::Cli::try_parse_from([&["agent-cli", "rotate", "web-1"], line].concat()).unwrap();
        let crate::commands::Command::Rotate(args) = cli.command else { panic!("not rotate") };
        let variable = |name: &str| (name == "TOKEN").then(|| OsString::from("canary-8e21"));
        Request::build(args, &mut "from stdin".as_bytes(), &variable)
    }

    #[test]
    fn every_flag_arrives() {
        let line = ["--file", "db/password=@-", "--file", "/abs=@env:TOKEN", "--remove", "old", "--remove", "/x/y"];
        let rest = ["--signal", "HUP", "--expect-generation", "7", "--public-file", "db/type=@env:TOKEN"];
        let rest = [&rest[..], &["--provider-token", "vault/app=@env:TOKEN"]].concat();
        let Request(message) = &build(&[&line[..], &rest].concat()).unwrap();
        let files: Vec<_> = message.files.iter().map(|file| (&*file.path, &file.content[..])).collect();
        assert_eq!(files, [("db/password", &b"from stdin"[..]), ("/abs", b"canary-8e21"), ("db/type", b"canary-8e21")]);
        assert_eq!(message.files.iter().map(|file| file.public).collect::<Vec<_>>(), [false, false, true]);
        let [token] = &message.provider_tokens[..] else { panic!("{message:?}") };
        assert_eq!([&*token.provider, &token.role, &token.token], ["vault", "app", "canary-8e21"]);
        assert_eq!(message.removed_paths, ["old", "/x/y"]);
        assert_eq!((&*message.id, message.signal, message.expected_generation), ("web-1", 1, Some(7)));
        let Request(least) = &build(&["--remove", "old"]).unwrap();
        assert_eq!((least.signal, least.expected_generation), (0, None));
    }

    #[test]
    fn rotate_without_file_source_fails() {
        for (line, expected) in [(&[][..], "at least one --file"), (&["--file", "a=canary"], "cannot be given")] {
            let error = build(line).err().unwrap().to_string();
            assert!(error.contains(expected) && !error.contains("canary"), "{error}");
        }
    }
}
