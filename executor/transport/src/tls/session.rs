//! A TLS session that keeps all decrypted data in buffers of this module.
//!
//! rustls decrypts data in place, in the buffer that its caller passes. rustls's own buffer would keep the last records
//! while the connection is open. The buffers of this module are overwritten as soon as their data was used. Copies that
//! rustls makes are overwritten when they are freed (`executor_secrets::ZeroOnFree`). This module does no socket I/O.

use std::collections::VecDeque;
use std::fmt;
use std::io::{self, IoSlice};
use std::sync::Arc;

use rustls::ServerConfig;
use rustls::pki_types::CertificateDer;
use rustls::server::UnbufferedServerConnection;
use rustls::unbuffered::{
    ConnectionState, EncodeError, EncodeTlsData, EncryptError, InsufficientSizeError, UnbufferedStatus,
};
use zeroize::Zeroize as _;

/// Maximum size of a TLS record (RFC 8446, 5.2) including its header, in bytes.
const RECORD_MAX: usize = 5 + (16 << 10) + 256;
/// Maximum buffered handshake data, in bytes. A certificate chain must fit.
const HANDSHAKE_MAX: usize = 32 << 10;
/// Maximum size of data that is encrypted in one call, in bytes.
const PLAIN_MAX: usize = 16 << 10;
/// Space for header, type and tag of a record, in bytes.
const OVERHEAD: usize = 64;

/// The server's side of a TLS session.
pub struct Session {
    connection: UnbufferedServerConnection,
    /// Received encrypted bytes, followed by zeros.
    incoming: Vec<u8>,
    filled: usize,
    /// Encrypted bytes that the socket must send; the first `sent` bytes were sent.
    outgoing: Vec<u8>,
    sent: usize,
    /// Decrypted pieces; `taken` is the number of consumed bytes of the first piece.
    plain: VecDeque<Vec<u8>>,
    taken: usize,
    closed: bool,
    /// True after an error: rustls must not be called again.
    failed: bool,
}

impl fmt::Debug for Session {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Session").field("closed", &self.closed).finish_non_exhaustive()
    }
}

impl Session {
    pub(super) fn new(config: Arc<ServerConfig>) -> Result<Self, rustls::Error> {
        Ok(Self {
            connection: UnbufferedServerConnection::new(config)?,
            incoming: vec![0; RECORD_MAX],
            filled: 0,
            outgoing: Vec::new(),
            sent: 0,
            plain: VecDeque::new(),
            taken: 0,
            closed: false,
            failed: false,
        })
    }

    pub(super) fn is_handshaking(&self) -> bool {
        self.connection.is_handshaking()
    }

    /// Returns the client's certificate, followed by the rest of its chain. Empty before the end of the handshake.
    pub(super) fn certificates(&self) -> &[CertificateDer<'static>] {
        self.connection.peer_certificates().unwrap_or_default()
    }

    /// Frees the space that only a handshake needs.
    pub(super) fn settle(&mut self) {
        if self.filled <= RECORD_MAX && self.incoming.len() > RECORD_MAX {
            let mut smaller = vec![0; RECORD_MAX];
            smaller[..self.filled].copy_from_slice(&self.incoming[..self.filled]);
            self.incoming = smaller;
        }
    }

    /// Returns free buffer space for bytes from the socket; the space is never empty.
    ///
    /// # Errors
    /// Returns an error if the buffer is full before the client has completed a TLS message.
    pub(super) fn room(&mut self) -> io::Result<&mut [u8]> {
        if self.filled == self.incoming.len() {
            if !self.is_handshaking() || self.filled >= HANDSHAKE_MAX {
                return Err(io::Error::new(
                    io::ErrorKind::InvalidData,
                    format!("the client sent {} bytes without completing a TLS record or the handshake", self.filled),
                ));
            }
            let mut larger = vec![0; HANDSHAKE_MAX];
            larger[..self.filled].copy_from_slice(&self.incoming);
            self.incoming = larger;
        }
        Ok(&mut self.incoming[self.filled..])
    }

    /// Processes bytes that were written into the space that [`Self::room`] returned. After an error, [`Self::unsent`]
    /// may return an alert.
    ///
    /// # Errors
    /// Returns an error if the bytes are not TLS, or the client is refused.
    pub(super) fn received(&mut self, bytes: usize) -> Result<(), rustls::Error> {
        self.filled += bytes;
        let advanced = self.advance();
        if advanced.is_err() {
            self.take_alert();
        }
        advanced
    }

    /// Moves the alert of a failed session from rustls to `outgoing`, and closes the session.
    fn take_alert(&mut self) {
        // rustls still uses offsets into the buffer, so pass it the remaining bytes once more.
        let Self { connection, incoming, filled, outgoing, .. } = self;
        if !self.failed
            && let Ok(ConnectionState::EncodeTlsData(mut data)) =
                connection.process_tls_records(&mut incoming[..*filled]).state
        {
            let _ = encode(&mut data, outgoing);
        }
        self.incoming.zeroize();
        (self.filled, self.failed) = (0, true);
    }

    fn advance(&mut self) -> Result<(), rustls::Error> {
        if self.failed {
            return Err(rustls::Error::General("the session has failed".to_owned()));
        }
        loop {
            let Self { connection, incoming, filled, outgoing, plain, closed, .. } = self;
            let UnbufferedStatus { discard, state } = connection.process_tls_records(&mut incoming[..*filled]);
            let mut blocked = false;
            let mut ended = Ok(());
            match state {
                Ok(ConnectionState::ReadTraffic(mut traffic)) => {
                    while let Some(record) = traffic.next_record() {
                        let record = record?.payload;
                        if !record.is_empty() {
                            plain.push_back(record.to_vec());
                        }
                    }
                }
                Ok(ConnectionState::EncodeTlsData(mut data)) => encode(&mut data, outgoing)?,
                // The data is in `outgoing`, and is sent from there once.
                Ok(ConnectionState::TransmitTlsData(data)) => data.done(),
                Ok(ConnectionState::PeerClosed) => *closed = true,
                Ok(_) => blocked = true,
                Err(error) => ended = Err(error),
            }
            self.discard(discard);
            ended?;
            if blocked {
                return Ok(());
            }
        }
    }

    /// Removes bytes from the front of `incoming`, and overwrites their memory.
    fn discard(&mut self, bytes: usize) {
        if bytes > 0 {
            self.incoming.copy_within(bytes..self.filled, 0);
            self.incoming[self.filled - bytes..self.filled].zeroize();
            self.filled -= bytes;
        }
    }

    /// Returns the encrypted bytes that must be sent.
    pub(super) fn unsent(&self) -> &[u8] {
        &self.outgoing[self.sent..]
    }

    /// Records that the socket accepted this many bytes.
    pub(super) fn sent(&mut self, bytes: usize) {
        self.sent += bytes;
        if self.sent == self.outgoing.len() {
            // Free the buffer: an idle connection needs no memory for it.
            (self.outgoing, self.sent) = (Vec::new(), 0);
        }
    }

    /// Moves decrypted bytes into the buffer, and returns the number of bytes moved.
    pub(super) fn read(&mut self, buffer: &mut [u8]) -> usize {
        let mut read = 0;
        while let Some(first) = self.plain.front()
            && read < buffer.len()
        {
            let some = (first.len() - self.taken).min(buffer.len() - read);
            buffer[read..read + some].copy_from_slice(&first[self.taken..self.taken + some]);
            read += some;
            self.taken += some;
            if self.taken == first.len() {
                self.plain.pop_front();
                self.taken = 0;
            }
        }
        read
    }

    /// Returns true if the client has sent close_notify.
    pub(super) fn is_closed(&self) -> bool {
        self.closed
    }

    /// Encrypts up to [`PLAIN_MAX`] bytes from the start of these pieces, and returns the number of plain bytes that
    /// were encrypted.
    ///
    /// # Errors
    /// Returns an error if the session is closed.
    pub(super) fn write(&mut self, pieces: &[IoSlice<'_>]) -> io::Result<usize> {
        let mut plain = zeroize::Zeroizing::new(Vec::with_capacity(
            pieces.iter().map(|piece| piece.len()).sum::<usize>().min(PLAIN_MAX),
        ));
        for piece in pieces {
            let some = piece.len().min(PLAIN_MAX - plain.len());
            plain.extend_from_slice(&piece[..some]);
        }
        self.with_traffic(|traffic, outgoing| {
            append(outgoing, plain.len() + OVERHEAD, |room| match traffic.encrypt(&plain, room) {
                Ok(written) => Ok(Ok(written)),
                Err(EncryptError::InsufficientSize(size)) => Err(size),
                Err(error @ EncryptError::EncryptExhausted) => Ok(Err(io::Error::other(error))),
            })
        })?;
        Ok(plain.len())
    }

    /// Queues a close_notify alert.
    ///
    /// # Errors
    /// Returns an error if the session is closed.
    pub(super) fn close(&mut self) -> io::Result<()> {
        self.with_traffic(|traffic, outgoing| {
            append(outgoing, OVERHEAD, |room| match traffic.queue_close_notify(room) {
                Ok(written) => Ok(Ok(written)),
                Err(EncryptError::InsufficientSize(size)) => Err(size),
                Err(error @ EncryptError::EncryptExhausted) => Ok(Err(io::Error::other(error))),
            })
        })
    }

    fn with_traffic(
        &mut self,
        act: impl FnOnce(
            &mut rustls::unbuffered::WriteTraffic<'_, rustls::server::ServerConnectionData>,
            &mut Vec<u8>,
        ) -> io::Result<()>,
    ) -> io::Result<()> {
        self.advance().map_err(io::Error::other)?;
        let Self { connection, incoming, filled, outgoing, .. } = self;
        // All complete records have been processed, so this call decrypts nothing.
        match connection.process_tls_records(&mut incoming[..*filled]).state {
            Ok(ConnectionState::WriteTraffic(mut traffic)) => act(&mut traffic, outgoing),
            Ok(_) => Err(io::ErrorKind::NotConnected.into()),
            Err(error) => Err(io::Error::other(error)),
        }
    }
}

/// Appends data that rustls encodes.
fn encode<Data>(data: &mut EncodeTlsData<'_, Data>, outgoing: &mut Vec<u8>) -> Result<(), rustls::Error> {
    append(outgoing, OVERHEAD, |room| match data.encode(room) {
        Ok(written) => Ok(Ok(written)),
        Err(EncodeError::InsufficientSize(size)) => Err(size),
        Err(EncodeError::AlreadyEncoded) => Ok(Ok(0)),
    })
}

/// Calls `write` with the free space after a buffer's content. If the space is too small, enlarges it and calls `write`
/// again.
fn append<E>(
    buffer: &mut Vec<u8>,
    room: usize,
    mut write: impl FnMut(&mut [u8]) -> Result<Result<usize, E>, InsufficientSizeError>,
) -> Result<(), E> {
    let start = buffer.len();
    let mut room = room;
    loop {
        buffer.resize(start + room, 0);
        match write(&mut buffer[start..]) {
            Ok(written) => {
                buffer.truncate(start + *written.as_ref().unwrap_or(&0));
                return written.map(drop);
            }
            Err(InsufficientSizeError { required_size }) => room = required_size.max(room + 1),
        }
    }
}

#[cfg(test)]
mod tests {
    use std::io::{Read as _, Write as _};

    use rustls::pki_types::{PrivateKeyDer, ServerName};
    use rustls::server::WebPkiClientVerifier;
    use rustls::{ClientConfig, ClientConnection, RootCertStore};

    use super::*;

    struct Pki {
        server: Arc<ServerConfig>,
        client: Arc<ClientConfig>,
    }

    fn pki() -> Pki {
        let made = rcgen::generate_simple_self_signed(["localhost".to_owned()]).unwrap();
        let key = || PrivateKeyDer::try_from(made.signing_key.serialize_der()).unwrap();
        let chain = vec![made.cert.der().clone()];
        let mut roots = RootCertStore::empty();
        roots.add(chain[0].clone()).unwrap();
        let (roots, provider) = (Arc::new(roots), Arc::new(rustls::crypto::ring::default_provider()));
        let verifier = WebPkiClientVerifier::builder_with_provider(Arc::clone(&roots), Arc::clone(&provider)).build();
        let server = ServerConfig::builder_with_provider(Arc::clone(&provider));
        let server = server.with_protocol_versions(&[&rustls::version::TLS13]).unwrap();
        let server =
            server.with_client_cert_verifier(verifier.unwrap()).with_single_cert(chain.clone(), key()).unwrap();
        let client = ClientConfig::builder_with_provider(provider);
        let client = client.with_protocol_versions(&[&rustls::version::TLS13]).unwrap().with_root_certificates(roots);
        let client = client.with_client_auth_cert(chain, key()).unwrap();
        Pki { server: Arc::new(server), client: Arc::new(client) }
    }

    /// Feeds bytes to a session, in pieces of this size.
    fn give(session: &mut Session, mut bytes: &[u8], piece: usize) -> Result<(), String> {
        while !bytes.is_empty() {
            let room = session.room().map_err(|error| error.to_string())?;
            let some = room.len().min(piece).min(bytes.len());
            room[..some].copy_from_slice(&bytes[..some]);
            bytes = &bytes[some..];
            session.received(some).map_err(|error| error.to_string())?;
        }
        Ok(())
    }

    fn said(client: &mut ClientConnection) -> Vec<u8> {
        let mut bytes = Vec::new();
        while client.wants_write() {
            client.write_tls(&mut bytes).unwrap();
        }
        bytes
    }

    fn recv(client: &mut ClientConnection, session: &mut Session) {
        let mut unsent = session.unsent();
        while !unsent.is_empty() {
            client.read_tls(&mut unsent).unwrap();
            let _ = client.process_new_packets();
        }
        let all = session.unsent().len();
        session.sent(all);
    }

    fn pair(pki: &Pki) -> (ClientConnection, Session) {
        let name = ServerName::try_from("localhost").unwrap();
        let client = ClientConnection::new(Arc::clone(&pki.client), name).unwrap();
        (client, Session::new(Arc::clone(&pki.server)).unwrap())
    }

    #[test]
    fn tls_bytes_pass_in_any_fragmentation() {
        let pki = pki();
        for piece in [1, 7, 1000, 1 << 20] {
            let (mut client, mut session) = pair(&pki);
            while session.is_handshaking() || client.is_handshaking() {
                give(&mut session, &said(&mut client), piece).unwrap();
                recv(&mut client, &mut session);
            }
            session.settle();
            client.writer().write_all(&[b's'; 50_000]).unwrap();
            let mut read = 0;
            for chunk in said(&mut client).chunks(8000) {
                give(&mut session, chunk, piece).unwrap();
                let mut buffer = [0; 20_000];
                loop {
                    let some = session.read(&mut buffer);
                    assert!(buffer[..some].iter().all(|byte| *byte == b's'));
                    read += some;
                    if some == 0 {
                        break;
                    }
                }
                let runs = session.incoming.windows(16).filter(|window| window.iter().all(|byte| *byte == b's'));
                assert_eq!(runs.count(), 0, "decrypted bytes stay in the buffer");
            }
            assert_eq!(read, 50_000);
            let answer = [7; 12_000];
            let mut written = 0;
            while written < answer.len() {
                let end = answer.len().min(written + 5000);
                written += session.write(&[IoSlice::new(&answer[written..end]), IoSlice::new(&[])]).unwrap();
            }
            session.close().unwrap();
            recv(&mut client, &mut session);
            let mut got = Vec::new();
            client.reader().read_to_end(&mut got).unwrap();
            assert!(got == answer, "{}", got.len());
            client.send_close_notify();
            give(&mut session, &said(&mut client), piece).unwrap();
            assert!(session.is_closed());
        }
    }

    /// If any byte of the handshake is changed or missing, the session fails with an error and has no other effect.
    #[test]
    fn malformed_handshake_fails_only_its_session() {
        let pki = pki();
        let mut random = 0x9e37_79b9_7f4a_7c15_u64;
        let mut next = |below: usize| {
            random ^= random << 13;
            random ^= random >> 7;
            random ^= random << 17;
            (random % below.max(1) as u64) as usize
        };
        let (mut failed, mut alerts) = (0, 0);
        for _ in 0..400 {
            let (mut client, mut session) = pair(&pki);
            let (spoilt, piece) = (next(3), 1 + next(3000));
            for flight in 0..3 {
                if flight == 2 {
                    client.writer().write_all(&[1; 100]).unwrap();
                }
                let mut bytes = said(&mut client);
                if flight == spoilt && !bytes.is_empty() {
                    let at = next(bytes.len());
                    match next(4) {
                        0 => bytes[at] ^= 1 << next(8),
                        1 => drop(bytes.drain(at..(at + 1 + next(40)).min(bytes.len()))),
                        2 => bytes.splice(at..at, [22, 3, 3, 0, 4, 1, 0, 0]).for_each(drop),
                        _ => bytes.extend(vec![next(256) as u8; 1 + next(100)]),
                    }
                }
                let given = give(&mut session, &bytes, piece);
                if given.is_err() {
                    failed += 1;
                    alerts += usize::from(!session.unsent().is_empty());
                    assert!(
                        session.room().is_err() || session.received(0).is_err(),
                        "the failed session does not stay failed"
                    );
                    assert!(session.write(&[IoSlice::new(b"x")]).is_err() && session.close().is_err());
                    break;
                }
                recv(&mut client, &mut session);
            }
        }
        assert!(failed > 100 && alerts > 50, "control failed: {failed} failed, {alerts} with an alert");
    }
}
