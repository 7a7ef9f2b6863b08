//! The instruction set of the kernels, detected once per process, never in a hot call.

use std::fmt;
use std::str::FromStr;
use std::sync::OnceLock;

/// The instruction sets for which kernels exist. All of them give the same results, bit for bit.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum InstructionSet {
    /// Rust without intrinsics, compiled for the baseline processor.
    Plain,
    /// x86-64 with AVX2 and F16C.
    Avx2,
    /// x86-64 with AVX-512 F, BW, DQ and VL.
    Avx512,
    /// aarch64 with Advanced SIMD, which every aarch64 processor has.
    Neon,
}

/// The error for an unknown name of an instruction set.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("instruction set is {0:?}; there is no such set. Use one of plain, avx2, avx512, neon")]
pub struct UnknownInstructionSet(pub String);

impl InstructionSet {
    /// The set of this processor that kernels use: the best one, unless the environment variable
    /// `STRATANN_ISA` (`plain`, `avx2`, `avx512` or `neon`) limits it.
    pub fn current() -> InstructionSet {
        static CURRENT: OnceLock<InstructionSet> = OnceLock::new();
        *CURRENT.get_or_init(|| {
            let cap = std::env::var("STRATANN_ISA")
                .ok()
                .and_then(|name| match name.parse() {
                    Ok(cap) => Some(cap),
                    Err(error) => {
                        // A wrong value changes only the speed, not the results.
                        let error: UnknownInstructionSet = error;
                        eprintln!("stratann: STRATANN_ISA is ignored: {error}");
                        None
                    }
                });
            best(InstructionSet::available(), cap)
        })
    }

    /// The sets that this processor has, worst first, beginning with [`InstructionSet::Plain`].
    pub fn available() -> &'static [InstructionSet] {
        static AVAILABLE: OnceLock<Vec<InstructionSet>> = OnceLock::new();
        AVAILABLE.get_or_init(detect)
    }

    /// The name that [`FromStr`] reads back.
    pub const fn name(self) -> &'static str {
        match self {
            InstructionSet::Plain => "plain",
            InstructionSet::Avx2 => "avx2",
            InstructionSet::Avx512 => "avx512",
            InstructionSet::Neon => "neon",
        }
    }
}

fn best(available: &[InstructionSet], cap: Option<InstructionSet>) -> InstructionSet {
    let allowed = |isa: &InstructionSet| cap.is_none_or(|cap| *isa <= cap);
    available
        .iter()
        .copied()
        .rfind(allowed)
        .unwrap_or(InstructionSet::Plain)
}

#[cfg(target_arch = "x86_64")]
fn detect() -> Vec<InstructionSet> {
    let mut found = vec![InstructionSet::Plain];
    if is_x86_feature_detected!("avx2") && is_x86_feature_detected!("f16c") {
        found.push(InstructionSet::Avx2);
        if is_x86_feature_detected!("avx512f")
            && is_x86_feature_detected!("avx512bw")
            && is_x86_feature_detected!("avx512dq")
            && is_x86_feature_detected!("avx512vl")
        {
            found.push(InstructionSet::Avx512);
        }
    }
    found
}

#[cfg(target_arch = "aarch64")]
fn detect() -> Vec<InstructionSet> {
    let mut found = vec![InstructionSet::Plain];
    if std::arch::is_aarch64_feature_detected!("neon") {
        found.push(InstructionSet::Neon);
    }
    found
}

#[cfg(not(any(target_arch = "x86_64", target_arch = "aarch64")))]
fn detect() -> Vec<InstructionSet> {
    vec![InstructionSet::Plain]
}

impl fmt::Display for InstructionSet {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(self.name())
    }
}

impl FromStr for InstructionSet {
    type Err = UnknownInstructionSet;

    fn from_str(text: &str) -> Result<InstructionSet, UnknownInstructionSet> {
        match text.to_ascii_lowercase().as_str() {
            "plain" => Ok(InstructionSet::Plain),
            "avx2" => Ok(InstructionSet::Avx2),
            "avx512" => Ok(InstructionSet::Avx512),
            "neon" => Ok(InstructionSet::Neon),
            _ => Err(UnknownInstructionSet(text.to_owned())),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::InstructionSet::*;
    use super::*;

    #[test]
    fn a_cap_lowers_and_never_raises() {
        let x86 = [Plain, Avx2, Avx512];
        assert_eq!(best(&x86, None), Avx512);
        assert_eq!(best(&x86, Some(Avx2)), Avx2);
        assert_eq!(best(&x86, Some(Plain)), Plain);
        assert_eq!(best(&[Plain, Avx2], Some(Avx512)), Avx2);
        assert_eq!(best(&[Plain, Neon], Some(Avx512)), Plain);
        assert_eq!(best(&[Plain, Neon], Some(Neon)), Neon);
    }

    #[test]
    fn names_read_back() {
        for isa in [Plain, Avx2, Avx512, Neon] {
            assert_eq!(isa.name().parse(), Ok(isa));
        }
        assert!("sse9".parse::<InstructionSet>().is_err());
        assert_eq!(InstructionSet::available()[0], Plain);
    }
}
