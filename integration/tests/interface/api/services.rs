//! Services beside the executor service: health and reflection.

use integration::daemon::Daemon;
use tonic::Code;
use tonic_health::pb::HealthCheckRequest;
use tonic_health::pb::health_check_response::ServingStatus;
use tonic_health::pb::health_client::HealthClient;
use tonic_reflection::pb::v1::ServerReflectionRequest;
use tonic_reflection::pb::v1::server_reflection_client::ServerReflectionClient;
use tonic_reflection::pb::v1::server_reflection_request::MessageRequest;
use tonic_reflection::pb::v1::server_reflection_response::MessageResponse;

#[test]
fn health_reports_server_and_service() {
    let daemon = Daemon::start();
    let check = |service: &str| {
        let request = HealthCheckRequest { service: service.into() };
        let answer = daemon.api.block_on(HealthClient::new(daemon.api.channel()).check(request));
        answer.map(|answer| answer.into_inner().status())
    };
    assert_eq!(check("").unwrap(), ServingStatus::Serving);
    assert_eq!(check("executor.v1.Executor").unwrap(), ServingStatus::Serving);
    assert_eq!(check("executor.v1.NoSuch").unwrap_err().code(), Code::NotFound);
}

fn ask(daemon: &Daemon, request: MessageRequest) -> MessageResponse {
    try_ask(daemon, request).unwrap_or_else(|code| panic!("{code:?}"))
}

#[test]
fn reflection_knows_the_services_and_their_files() {
    let daemon = Daemon::start();
    let MessageResponse::ListServicesResponse(list) = ask(&daemon, MessageRequest::ListServices(String::new())) else {
        panic!("unexpected response");
    };
    let names: Vec<String> = list.service.into_iter().map(|service| service.name).collect();
    for name in ["executor.v1.Executor", "grpc.health.v1.Health"] {
        assert!(names.iter().any(|known| known == name), "{name} is not among {names:?}");
    }
    let symbol = MessageRequest::FileContainingSymbol("executor.v1.RunAction".into());
    let MessageResponse::FileDescriptorResponse(files) = ask(&daemon, symbol) else { panic!("unexpected response") };
    let has = |text: &[u8]| files.file_descriptor_proto.iter().any(|file| file.windows(text.len()).any(|w| w == text));
    assert!(has(b"volume_mounted_files") && has(b"suppress_log_output"));
    let unknown = MessageRequest::FileContainingSymbol("executor.v1.Nothing".into());
    assert!(matches!(try_ask(&daemon, unknown), Err(Code::NotFound)));
}

/// Requests a symbol. A server may report an unknown symbol in the stream or as the status of the stream.
fn try_ask(daemon: &Daemon, request: MessageRequest) -> Result<MessageResponse, Code> {
    let request = ServerReflectionRequest { host: String::new(), message_request: Some(request) };
    daemon.api.block_on(async {
        let mut client = ServerReflectionClient::new(daemon.api.channel());
        let stream = client.server_reflection_info(tokio_stream::once(request)).await;
        let answer = stream.map_err(|status| status.code())?.into_inner().message().await;
        match answer.map_err(|status| status.code())?.and_then(|answer| answer.message_response) {
            Some(MessageResponse::ErrorResponse(error)) => Err(Code::from_i32(error.error_code)),
            Some(answer) => Ok(answer),
            None => Err(Code::Unknown),
        }
    })
}
