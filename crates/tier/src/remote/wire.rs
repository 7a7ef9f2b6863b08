//! The byte format of the protocol between a memory server and its clients.
//!
//! A connection begins with three greetings, each complete before the next one is sent. All numbers
//! are little-endian.
//!
//! ```text
//!   server   0 "STRATANN"   8 version u32   12 flags u32: 1, 2   16 nonce [32]            48 bytes
//!   client   0 "STRATANN"   8 version u32  12 flags u32: 1  16 nonce [32]  48 proof [32]  80 bytes
//!   server   0 "STRATANN"   8 status u32   12 zero u32      16 proof [32]                 48 bytes
//! ```
//!
//! If flag 1 of the server is set, clients need a secret. If its flag 2 is set, the bytes after the
//! greetings may go through UCX. Flag 1 of the client says that these bytes go through UCX. Only
//! servers of DistVS, which always have a secret, and their clients use UCX for these bytes.
//!
//! **The secret is never sent.** A proof is a BLAKE3 hash of the proving side, of both nonces and,
//! over TLS, of the channel ([`Binding`]). The key of this hash is a hash of the secret. A server
//! without a secret accepts any proof and sends zeros.
//!
//! The upper 16 bits of the version name the [`Protocol`] that follows the greetings. A client
//! sends requests as frames to a server of files, and the server answers with frames. A frame has a
//! header of 40 bytes and a body:
//!
//! | offset | | request | answer |
//! |---|---|---|---|
//! | 0 | u32 | the request ([`Kind`]) | the same, or 255 |
//! | 4 | u32 | bytes of the body | bytes of the body |
//! | 8 | u64 | the client's tag of the request | the same |
//! | 16 | u64 | a file | a file |
//! | 24 | u64 | an offset in the file, or its length | the file's length, or the free bytes |
//! | 32 | u32 | number of bytes to read | 0, or the reason ([`Refusal`]) |
//! | 36 | u32 | CRC-32C of the bytes before, and of the body | the same |
//!
//! | kind | body of a request | body of its answer |
//! |---|---|---|
//! | open | a name | |
//! | read | | the bytes |
//! | begin | a name; the offset field is the length of the new file | |
//! | write | bytes of a new file | |
//! | commit | the BLAKE3 hash of all bytes of the file | |
//! | sweep | a prefix, a zero byte, and the prefix of files that stay | |
//! | room | | |
//! | reach | | the address of the file ([`ucx::Target::reach`](super::ucx::Target::reach)) |
//! | list | a prefix, a zero byte, the last name of the previous list | 64 KiB (below) |
//! | hash | | the BLAKE3 hash of all bytes of the file |
//!
//! The answer to `list` has an entry ([`Listed`]) for each file, in the order of the names, then
//! zeros up to 64 KiB. Answers may arrive in any order. Answer 255 is a refusal, with a text as its
//! body.

use std::fmt;

use crate::volume::LOCK_FILE;

/// The version of this format. Since version 2, proofs cover the channel. Since version 3, a client
/// can request the hash of a file.
pub const VERSION: u32 = 3;
/// The version of the messages of DistVS. Crate `stratann-node` compiles only if its
/// `wire::VERSION` is equal.
const ROLES: u32 = 7;

/// The protocol of a server's role: the upper 16 bits of the version in greetings. If a client
/// connects to a server of another role, the error names this role.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u16)]
pub enum Protocol {
    /// A memory server that keeps files: this module.
    Files = 0,
    /// The memory role of DistVS.
    Memory = 1,
    /// The compute role.
    Compute = 2,
    /// The storage role.
    Storage = 3,
}

impl Protocol {
    /// The version that greetings contain.
    pub const fn version(self) -> u32 {
        let version = match self {
            Protocol::Files => VERSION,
            Protocol::Memory | Protocol::Compute | Protocol::Storage => ROLES,
        };
        (self as u32) << 16 | version
    }

    /// Whether this is the protocol of a role of DistVS.
    pub fn is_role(self) -> bool {
        self != Protocol::Files
    }

    /// The protocol of a greeting's version, if it is known.
    pub fn of(version: u32) -> Option<Protocol> {
        [
            Protocol::Files,
            Protocol::Memory,
            Protocol::Compute,
            Protocol::Storage,
        ]
        .into_iter()
        .find(|&protocol| protocol as u32 == version >> 16)
    }

    /// Describes the mismatch between this protocol and a server of this version.
    pub fn mismatch(self, version: u32) -> String {
        match Protocol::of(version) {
            Some(other) if other != self => {
                format!("is {other}, not {self}. Check address and port")
            }
            Some(_) => {
                let (own, theirs) = (self.version() & 0xFFFF, version & 0xFFFF);
                format!(
                    "speaks protocol version {theirs}, but this program speaks protocol version {own}. Use the same version of StratANN on both sides"
                )
            }
            None => format!(
                "is a server of a later version (it speaks protocol {}). Use the same version of StratANN on both sides",
                version >> 16
            ),
        }
    }

    /// The name of such a server as the subject of a message: `the storage server`.
    pub fn role(self) -> &'static str {
        match self {
            Protocol::Files | Protocol::Memory => "the memory server",
            Protocol::Compute => "the compute server",
            Protocol::Storage => "the storage server",
        }
    }
}

impl fmt::Display for Protocol {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Protocol::Files => "a memory server of files",
            Protocol::Memory => "a memory server of DistVS",
            Protocol::Compute => "a compute server",
            Protocol::Storage => "a storage server",
        })
    }
}

const MAGIC: &[u8; 8] = b"STRATANN";
/// The size in bytes of the server's first greeting, and of its second greeting.
pub const GREETING: usize = 48;
/// The size of the client's greeting in bytes.
pub const REPLY: usize = 80;
/// The size of a frame's header in bytes.
pub const HEADER: usize = 40;
/// The maximum number of bytes of one read.
pub const MOST_READ: u32 = 8 << 20;
/// The maximum number of bytes of a request's body.
pub const MOST_WRITTEN: u32 = 1 << 20;
/// The maximum number of bytes of a name.
pub const MOST_NAME: usize = 200;
const REFUSED: u32 = 255;

/// Random bytes that are used once.
pub type Nonce = [u8; 32];
/// Identifies a channel of TLS to both of its ends (RFC 5705, RFC 9266); without TLS, [`UNBOUND`].
pub type Binding = [u8; 32];
/// The binding of a connection without encryption.
pub const UNBOUND: Binding = [0; 32];
/// The label with which TLS derives the binding.
pub const CHANNEL: &[u8] = b"EXPORTER-stratann-memory-server";
/// A proof that a side knows the secret.
pub type Proof = [u8; 32];

/// Random bytes of the operating system.
///
/// # Errors
/// Fails if the operating system provides no random bytes.
pub fn nonce() -> std::io::Result<Nonce> {
    crate::random()
}

/// The secret that a server and its clients share, as a hash.
#[derive(Clone)]
pub struct Secret([u8; 32]);

impl fmt::Debug for Secret {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Secret(..)")
    }
}

/// The side that gives a proof.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Side {
    /// The side that connected.
    Client,
    /// The side that accepted the connection.
    Server,
}

impl Side {
    fn name(self) -> &'static [u8] {
        match self {
            Side::Client => b"client",
            Side::Server => b"server",
        }
    }
}

/// The key of one connection. A proof with this key shows which side sent some bytes, and that the
/// bytes are unchanged.
#[derive(Clone)]
pub struct Seal([u8; 32]);

impl fmt::Debug for Seal {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Seal(..)")
    }
}

impl Seal {
    /// A proof that one side sent these bytes.
    pub fn proof(&self, side: Side, bytes: &[u8]) -> Proof {
        self.hash(side, bytes).into()
    }

    fn hash(&self, side: Side, bytes: &[u8]) -> blake3::Hash {
        let mut hasher = blake3::Hasher::new_keyed(&self.0);
        hasher.update(side.name()).update(bytes).finalize()
    }

    /// Whether a proof is valid. The comparison takes the same time for any proof.
    pub fn is_shown(&self, proof: &Proof, side: Side, bytes: &[u8]) -> bool {
        self.hash(side, bytes) == blake3::Hash::from_bytes(*proof)
    }
}

impl Secret {
    /// The smallest length of a secret in bytes.
    pub const LEAST_BYTES: usize = 16;

    /// Makes a secret from the contents of a file or a variable; `None` if they are too short.
    pub fn new(bytes: &[u8]) -> Option<Secret> {
        let bytes = bytes.trim_ascii();
        let long = bytes.len() >= Self::LEAST_BYTES;
        long.then(|| {
            Secret(blake3::derive_key(
                "StratANN memory server 1: secret of clients and server",
                bytes,
            ))
        })
    }

    pub(super) fn fingerprint(&self) -> [u8; 32] {
        blake3::derive_key("StratANN memory server 1: connections in common", &self.0)
    }

    /// A side's proof that it knows the secret, valid only for these nonces and this channel.
    pub fn proof(&self, side: Side, nonces: [&Nonce; 2], channel: &Binding) -> Proof {
        self.hash(side, nonces, channel).into()
    }

    fn hash(&self, side: Side, [server, client]: [&Nonce; 2], channel: &Binding) -> blake3::Hash {
        let mut hasher = blake3::Hasher::new_keyed(&self.0);
        hasher
            .update(side.name())
            .update(server)
            .update(client)
            .update(channel);
        hasher.finalize()
    }

    /// The key of the connection with these nonces. No key equals a proof, because a proof is the
    /// hash of bytes with another prefix.
    pub fn seal(&self, [server, client]: [&Nonce; 2]) -> Seal {
        let mut hasher = blake3::Hasher::new_keyed(&self.0);
        hasher.update(b"seal").update(server).update(client);
        Seal(hasher.finalize().into())
    }

    /// Whether a proof is valid. The comparison takes the same time for any proof.
    pub fn is_shown(
        &self,
        proof: &Proof,
        side: Side,
        nonces: [&Nonce; 2],
        channel: &Binding,
    ) -> bool {
        self.hash(side, nonces, channel) == blake3::Hash::from_bytes(*proof)
    }
}

/// The first greeting, which the server sends.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Greeting {
    /// The version of the server's protocol.
    pub version: u32,
    /// Whether clients must know a secret.
    pub wants_secret: bool,
    /// Whether the bytes after the greetings may go through UCX.
    pub ucx: bool,
    /// The server's nonce.
    pub nonce: Nonce,
}

/// The second greeting, which the client sends.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Reply {
    /// The version of the client's protocol.
    pub version: u32,
    /// Whether the client continues through UCX.
    pub ucx: bool,
    /// The client's nonce.
    pub nonce: Nonce,
    /// The client's proof of the secret; zeros without a secret.
    pub proof: Proof,
}

/// The third greeting, with which the server accepts or refuses the client.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Welcome {
    /// Whether the client is accepted.
    pub status: Status,
    /// The server's proof of the secret; zeros without a secret.
    pub proof: Proof,
}

/// The server's decision about a client.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u32)]
pub enum Status {
    /// The client is accepted.
    Welcome = 0,
    /// The client does not know the secret.
    WrongSecret = 1,
    /// The server has its maximum number of clients.
    Full = 2,
    /// The client has another version.
    OtherVersion = 3,
}

fn u32_at(bytes: &[u8], at: usize) -> u32 {
    u32::from_le_bytes(std::array::from_fn(|i| bytes[at + i]))
}

fn u64_at(bytes: &[u8], at: usize) -> u64 {
    u64::from_le_bytes(std::array::from_fn(|i| bytes[at + i]))
}

fn bytes_at(bytes: &[u8], at: usize) -> [u8; 32] {
    std::array::from_fn(|i| bytes[at + i])
}

fn begin(number: u32, flags: u32) -> Vec<u8> {
    let mut bytes = MAGIC.to_vec();
    bytes.extend(number.to_le_bytes());
    bytes.extend(flags.to_le_bytes());
    bytes
}

impl Greeting {
    /// Encodes the greeting.
    pub fn encode(&self) -> Vec<u8> {
        let flags = u32::from(self.wants_secret) | u32::from(self.ucx) << 1;
        let mut bytes = begin(self.version, flags);
        bytes.extend(self.nonce);
        bytes
    }

    /// Decodes a greeting; `None` if the bytes are not a valid greeting.
    pub fn decode(bytes: &[u8; GREETING]) -> Option<Greeting> {
        let flags = u32_at(bytes, 12);
        (bytes.starts_with(MAGIC) && flags <= 3).then(|| Greeting {
            version: u32_at(bytes, 8),
            wants_secret: flags & 1 == 1,
            ucx: flags & 2 == 2,
            nonce: bytes_at(bytes, 16),
        })
    }
}

impl Reply {
    /// Encodes the reply.
    pub fn encode(&self) -> Vec<u8> {
        let mut bytes = begin(self.version, self.ucx.into());
        bytes.extend(self.nonce);
        bytes.extend(self.proof);
        bytes
    }

    /// Decodes a reply; `None` if the bytes are not a valid reply.
    pub fn decode(bytes: &[u8; REPLY]) -> Option<Reply> {
        let flags = u32_at(bytes, 12);
        (bytes.starts_with(MAGIC) && flags <= 1).then(|| Reply {
            version: u32_at(bytes, 8),
            ucx: flags == 1,
            nonce: bytes_at(bytes, 16),
            proof: bytes_at(bytes, 48),
        })
    }
}

impl Welcome {
    /// Encodes the welcome.
    pub fn encode(&self) -> Vec<u8> {
        let mut bytes = begin(self.status as u32, 0);
        bytes.extend(self.proof);
        bytes
    }

    /// Decodes a welcome; `None` if the bytes are not a valid welcome.
    pub fn decode(bytes: &[u8; GREETING]) -> Option<Welcome> {
        let all = [
            Status::Welcome,
            Status::WrongSecret,
            Status::Full,
            Status::OtherVersion,
        ];
        let status = all
            .into_iter()
            .find(|&status| status as u32 == u32_at(bytes, 8))?;
        (bytes.starts_with(MAGIC) && u32_at(bytes, 12) == 0).then(|| Welcome {
            status,
            proof: bytes_at(bytes, 16),
        })
    }
}

/// The kind of a request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u32)]
pub enum Kind {
    /// Open a file by its name.
    Open = 1,
    /// Read bytes of a file.
    Read = 2,
    /// Begin a new file.
    Begin = 3,
    /// Write bytes of a new file.
    Write = 4,
    /// Give a new file its name.
    Commit = 5,
    /// Remove the names of the files whose names begin with a prefix.
    Sweep = 6,
    /// Query the number of free bytes.
    Room = 7,
    /// Query the address of a file for reads through UCX.
    Reach = 8,
    /// List files.
    List = 9,
    /// Query the hash of a file.
    Hash = 10,
}

/// The reason of a refusal.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u32)]
pub enum Refusal {
    /// There is no such file.
    Missing = 1,
    /// The range extends beyond the end of the file.
    Range = 2,
    /// There is no space.
    Full = 3,
    /// The name is invalid.
    Name = 4,
    /// A checksum or hash does not match.
    Damaged = 5,
    /// Any other reason.
    Other = 6,
}

impl Kind {
    const ALL: [Kind; 10] = [
        Kind::Open,
        Kind::Read,
        Kind::Begin,
        Kind::Write,
        Kind::Commit,
        Kind::Sweep,
        Kind::Room,
        Kind::Reach,
        Kind::List,
        Kind::Hash,
    ];
}

impl Refusal {
    const ALL: [Refusal; 6] = [
        Refusal::Missing,
        Refusal::Range,
        Refusal::Full,
        Refusal::Name,
        Refusal::Damaged,
        Refusal::Other,
    ];
}

/// The header of a frame, without its checksum.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Frame {
    /// The kind of the request; `None` for a refusal.
    pub kind: Option<Kind>,
    /// The size of the body in bytes.
    pub len: u32,
    /// The client's tag of the request.
    pub tag: u64,
    /// The number of a file, which the server gave to the client.
    pub file: u64,
    /// An offset in the file, or its length.
    pub offset: u64,
    /// The number of requested bytes, or the reason of a refusal.
    pub count: u32,
}

impl Frame {
    /// Creates a frame that has only a kind and a tag.
    pub fn new(kind: Kind, tag: u64) -> Frame {
        Frame {
            kind: Some(kind),
            len: 0,
            tag,
            file: 0,
            offset: 0,
            count: 0,
        }
    }

    /// Creates the header of a refusal.
    pub fn refusal(tag: u64, why: Refusal) -> Frame {
        Frame {
            kind: None,
            count: why as u32,
            ..Frame::new(Kind::Open, tag)
        }
    }

    /// The reason of a refusal; `None` if the frame is not a refusal, or the reason is unknown.
    pub fn why(&self) -> Option<Refusal> {
        let known = Refusal::ALL
            .into_iter()
            .find(|&why| why as u32 == self.count);
        known.filter(|_| self.kind.is_none())
    }

    fn plain(&self) -> [u8; HEADER] {
        let mut bytes = [0; HEADER];
        let kind = self.kind.map_or(REFUSED, |kind| kind as u32);
        bytes[0..4].copy_from_slice(&kind.to_le_bytes());
        bytes[4..8].copy_from_slice(&self.len.to_le_bytes());
        bytes[8..16].copy_from_slice(&self.tag.to_le_bytes());
        bytes[16..24].copy_from_slice(&self.file.to_le_bytes());
        bytes[24..32].copy_from_slice(&self.offset.to_le_bytes());
        bytes[32..36].copy_from_slice(&self.count.to_le_bytes());
        bytes
    }

    /// Appends the header and the body. The length field is set to the body's length.
    pub fn append(mut self, body: &[u8], to: &mut Vec<u8>) {
        self.len = body.len() as u32;
        let mut header = self.plain();
        let sum = crc32c::crc32c_append(crc32c::crc32c(&header[..36]), body);
        header[36..].copy_from_slice(&sum.to_le_bytes());
        to.extend(header);
        to.extend(body);
    }

    /// Decodes a header, with the checksum of the bytes before the body.
    pub fn decode(header: &[u8; HEADER]) -> Option<(Frame, Sum)> {
        let kind = match u32_at(header, 0) {
            REFUSED => None,
            kind => Some(Kind::ALL.into_iter().find(|&known| known as u32 == kind)?),
        };
        let frame = Frame {
            kind,
            len: u32_at(header, 4),
            tag: u64_at(header, 8),
            file: u64_at(header, 16),
            offset: u64_at(header, 24),
            count: u32_at(header, 32),
        };
        let sum = Sum {
            so_far: crc32c::crc32c(&header[..36]),
            right: u32_at(header, 36),
        };
        Some((frame, sum))
    }
}

/// The checksum of a frame whose body is still arriving.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Sum {
    so_far: u32,
    right: u32,
}

impl Sum {
    /// Adds the next bytes of the body.
    #[must_use]
    pub fn and(self, bytes: &[u8]) -> Sum {
        Sum {
            so_far: crc32c::crc32c_append(self.so_far, bytes),
            ..self
        }
    }

    /// Whether the checksum of all bytes matches.
    pub fn is_right(self) -> bool {
        self.so_far == self.right
    }
}

/// An entry of a server's list of files.
///
/// | offset | | |
/// |---|---|---|
/// | 0 | u64 | the length of the file |
/// | 8 | u8 | 1: a client has the file open |
/// | 9 | u8 | number of bytes of the name; 0 is the end of the list |
/// | 10 | | the name |
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Listed {
    /// The name.
    pub name: String,
    /// The length in bytes.
    pub len: u64,
    /// Whether a client has the file open.
    pub in_use: bool,
}

/// The size in bytes of a file's or a stream's description for UCX, padded with zeros.
pub const REACH: usize = 4096;
/// The size of a list in bytes.
pub const LIST: usize = 64 << 10;
const ENTRY: usize = 10;

impl Listed {
    /// Appends this file to a list; `false` if it does not fit the list.
    pub fn append(&self, list: &mut Vec<u8>) -> bool {
        let room = list.len() + ENTRY + self.name.len() <= LIST && self.name.len() <= MOST_NAME;
        if room {
            list.extend(self.len.to_le_bytes());
            list.extend([self.in_use.into(), self.name.len() as u8]);
            list.extend(self.name.as_bytes());
        }
        room
    }

    /// Decodes a list; `None` if the bytes are invalid.
    pub fn decode(mut list: &[u8]) -> Option<Vec<Listed>> {
        let mut all = Vec::new();
        while let Some((entry, rest)) = list.split_first_chunk::<ENTRY>() {
            let len = usize::from(entry[9]);
            if len == 0 {
                break;
            }
            let name = std::str::from_utf8(rest.get(..len)?).ok()?;
            if !is_name(name) || entry[8] > 1 {
                return None;
            }
            all.push(Listed {
                name: name.to_owned(),
                len: u64_at(entry, 0),
                in_use: entry[8] == 1,
            });
            list = &rest[len..];
        }
        Some(all)
    }
}

/// Whether a string is a valid name of a file on a server, never a path.
pub fn is_name(name: &str) -> bool {
    let plain = |byte: u8| byte.is_ascii_alphanumeric() || b"._-".contains(&byte);
    let length = (1..=MOST_NAME).contains(&name.len());
    // The folder of a server has a lock file with this name.
    length && !name.starts_with('.') && name != LOCK_FILE && name.bytes().all(plain)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn greetings_and_frames_are_what_they_were() {
        let (nonce, other) = (nonce().unwrap(), nonce().unwrap());
        assert_ne!(nonce, other);
        let greeting = Greeting {
            version: VERSION,
            wants_secret: true,
            ucx: true,
            nonce,
        };
        let bytes: [u8; GREETING] = greeting.encode().try_into().unwrap();
        assert_eq!(Greeting::decode(&bytes), Some(greeting));
        let reply = Reply {
            version: 9,
            ucx: true,
            nonce: other,
            proof: nonce,
        };
        assert_eq!(
            Reply::decode(&reply.encode().try_into().unwrap()),
            Some(reply)
        );
        for status in [
            Status::Welcome,
            Status::WrongSecret,
            Status::Full,
            Status::OtherVersion,
        ] {
            let welcome = Welcome {
                status,
                proof: other,
            };
            assert_eq!(
                Welcome::decode(&welcome.encode().try_into().unwrap()),
                Some(welcome)
            );
        }
        assert_eq!(Greeting::decode(&[7; GREETING]), None);
        for kind in Kind::ALL.map(Some).into_iter().chain([None]) {
            let frame = Frame {
                kind,
                len: 5,
                tag: u64::MAX - 1,
                file: 77,
                offset: 1 << 40,
                count: 3,
            };
            let mut bytes = Vec::new();
            frame.append(b"hello", &mut bytes);
            let (header, body) = bytes.split_first_chunk::<HEADER>().unwrap();
            let (found, sum) = Frame::decode(header).unwrap();
            assert_eq!((found, body), (frame, &b"hello"[..]));
            assert!(sum.and(b"he").and(b"llo").is_right());
            for bit in 0..bytes.len() * 8 {
                let mut wrong = bytes.clone();
                wrong[bit / 8] ^= 1 << (bit % 8);
                let (header, body) = wrong.split_first_chunk::<HEADER>().unwrap();
                let right = Frame::decode(header).is_some_and(|(_, sum)| sum.and(body).is_right());
                assert!(!right, "bit {bit}");
            }
        }
        assert_eq!(Frame::refusal(1, Refusal::Full).why(), Some(Refusal::Full));
        assert_eq!(Frame::new(Kind::Read, 1).why(), None);
    }

    #[test]
    fn a_proof_is_of_one_secret_one_side_and_one_conversation() {
        let secret = Secret::new(b"correct horse battery\n").unwrap();
        let (server, client) = (&[1; 32], &[2; 32]);
        let proof = secret.proof(Side::Client, [server, client], &UNBOUND);
        let shown = |side, nonces, channel| secret.is_shown(&proof, side, nonces, channel);
        assert!(shown(Side::Client, [server, client], &UNBOUND));
        assert!(!shown(Side::Server, [server, client], &UNBOUND));
        assert!(!shown(Side::Client, [client, client], &UNBOUND));
        assert!(!shown(Side::Client, [server, client], &[3; 32]));
        let other = Secret::new(b"correct horse batterz").unwrap();
        assert!(!other.is_shown(&proof, Side::Client, [server, client], &UNBOUND));
        assert!(Secret::new(b"too short").is_none() && !format!("{secret:?}").contains("horse"));
    }

    #[test]
    fn a_name_is_no_path() {
        for name in ["a", "photos.0123abcd.graph-000001", &"x".repeat(MOST_NAME)] {
            assert!(is_name(name), "{name}");
        }
        for name in [
            "",
            ".",
            "..",
            "a/b",
            "a\0b",
            ".hidden",
            "ä",
            "a b",
            &"x".repeat(MOST_NAME + 1),
        ] {
            assert!(!is_name(name), "{name}");
        }
    }
}
