//! The beginning of a connection on the server's side, and the time limits for a client.

use std::io::{self, ErrorKind, Read, Write};
use std::time::{Duration, Instant};

use stratann_tier::remote::wire::{
    self, Greeting, Protocol, REPLY, Reply, Seal, Secret, Side, Status, Welcome,
};

use crate::stream::Stream;

/// The bytes after which a client's time limit starts again.
const OF_USE: usize = 64 << 10;
const LEAST_WAIT: Duration = Duration::from_millis(1);

/// The beginnings of HTTP requests. No [`Reply`] of a client begins like this.
const BROWSERS: [&[u8; FIRST]; 5] = [b"GET ", b"HEAD", b"POST", b"PUT ", b"OPTI"];
const FIRST: usize = 4;

fn elsewhere(protocol: Protocol) -> String {
    let text = format!(
        "this is the port of {protocol} of StratANN, for clients of this server. The option --http of this server sets the address of its health and metrics\n"
    );
    format!(
        "\r\nHTTP/1.1 400 Bad Request\r\nContent-Type: text/plain\r\nContent-Length: {}\r\nConnection: close\r\n\r\n{text}",
        text.len()
    )
}

pub(crate) fn nonsense(what: &str) -> io::Error {
    io::Error::new(ErrorKind::InvalidData, what.to_owned())
}

pub(crate) struct Deadline {
    patience: Duration,
    until: Instant,
    of_use: usize,
}

impl Deadline {
    pub(crate) fn new(patience: Duration) -> Deadline {
        let until = Instant::now() + patience;
        Deadline {
            patience,
            until,
            of_use: 0,
        }
    }

    pub(crate) fn left(&self) -> io::Result<Duration> {
        match self.until.saturating_duration_since(Instant::now()) {
            Duration::ZERO => Err(ErrorKind::TimedOut.into()),
            left => Ok(left),
        }
    }

    pub(crate) fn advance(&mut self, bytes: usize) {
        self.of_use += bytes;
        if self.of_use >= OF_USE {
            *self = Deadline::new(self.patience);
        }
    }
}

fn receive(stream: &mut Stream, mut out: &mut [u8], until: Instant) -> io::Result<()> {
    while !out.is_empty() {
        let left = until.saturating_duration_since(Instant::now());
        if left.is_zero() {
            return Err(ErrorKind::TimedOut.into());
        }
        stream.set_read_timeout(Some(left))?;
        match stream.read(out) {
            Ok(0) => return Err(ErrorKind::UnexpectedEof.into()),
            Ok(got) => out = &mut out[got..],
            Err(error) if error.kind() == ErrorKind::Interrupted => {}
            Err(error) => return Err(error),
        }
    }
    Ok(())
}

/// Greets a client. If `ucx` is set and the client wants UCX, the result has the seal of the
/// connection. `admit` returns whether the server has space for a client that knows the secret.
pub(crate) fn greet(
    protocol: Protocol,
    secret: Option<&Secret>,
    ucx: bool,
    stream: &mut Stream,
    until: Instant,
    admit: impl FnOnce() -> bool,
) -> io::Result<Option<Seal>> {
    let version = protocol.version();
    let ucx = ucx && secret.is_some();
    stream.set_write_timeout(Some(
        until
            .saturating_duration_since(Instant::now())
            .max(LEAST_WAIT),
    ))?;
    let greeting = Greeting {
        version,
        wants_secret: secret.is_some(),
        ucx,
        nonce: wire::nonce()?,
    };
    stream.write_all(&greeting.encode())?;
    stream.flush()?;
    let mut bytes = [0; REPLY];
    let (first, rest) = bytes.split_at_mut(FIRST);
    receive(stream, first, until)?;
    if BROWSERS.iter().any(|method| first == *method) {
        stream.write_all(elsewhere(protocol).as_bytes())?;
        stream.flush()?;
        return Err(nonsense("an HTTP request to a port for clients"));
    }
    receive(stream, rest, until)?;
    let reply =
        Reply::decode(&bytes).ok_or_else(|| nonsense("the greeting of a client is not valid"))?;
    if reply.ucx && !ucx {
        return Err(nonsense("a request for UCX, which was not offered"));
    }
    let (nonces, channel) = ([&greeting.nonce, &reply.nonce], stream.channel()?);
    let shown =
        secret.is_none_or(|secret| secret.is_shown(&reply.proof, Side::Client, nonces, &channel));
    let status = match (reply.version == version, shown) {
        (true, true) if admit() => Status::Welcome,
        (true, true) => Status::Full,
        (true, false) => Status::WrongSecret,
        (false, _) => Status::OtherVersion,
    };
    let proof = match (secret, status) {
        (Some(secret), Status::Welcome | Status::Full) => {
            secret.proof(Side::Server, nonces, &channel)
        }
        _ => [0; 32],
    };
    stream.set_write_timeout(Some(
        until
            .saturating_duration_since(Instant::now())
            .max(LEAST_WAIT),
    ))?;
    stream.write_all(&Welcome { status, proof }.encode())?;
    stream.flush()?;
    if status != Status::Welcome {
        return Err(nonsense("the client was refused"));
    }
    let secret = secret.filter(|_| reply.ucx);
    Ok(secret.map(|secret| secret.seal(nonces)))
}
