//! The machine on which a benchmark ran.

use serde::{Deserialize, Serialize};

/// Facts about the machine.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub struct Machine {
    /// The number of cores that this process may use.
    pub cores: usize,
    /// The processor's name.
    pub cpu: String,
    /// The kernel's version.
    pub kernel: String,
    /// The RAM of the machine in bytes.
    pub memory_bytes: Option<u64>,
    /// Processor architecture.
    pub architecture: String,
}

impl Machine {
    /// Reads the facts. An unknown fact is "unknown".
    pub fn look() -> Machine {
        let read = |path: &str| std::fs::read_to_string(path).unwrap_or_default();
        let unknown = || "unknown".to_string();
        Machine {
            cores: stratann::processors(),
            cpu: cpu(&read("/proc/cpuinfo")).unwrap_or_else(unknown),
            kernel: Some(read("/proc/sys/kernel/osrelease").trim().to_string())
                .filter(|text| !text.is_empty())
                .unwrap_or_else(unknown),
            memory_bytes: memory(&read("/proc/meminfo")),
            architecture: std::env::consts::ARCH.to_string(),
        }
    }
}

/// On x86, the name is `model name`. ARM kernels report only part numbers.
fn cpu(cpuinfo: &str) -> Option<String> {
    let field = |name: &str| {
        cpuinfo
            .lines()
            .find(|line| line.starts_with(name))
            .and_then(|line| line.split_once(':'))
            .map(|(_, value)| value.trim().to_string())
    };
    field("model name").or_else(|| Some(format!("ARM part {}", field("CPU part")?)))
}

fn memory(meminfo: &str) -> Option<u64> {
    let line = meminfo.lines().find(|line| line.starts_with("MemTotal:"))?;
    let kib: u64 = line.split_whitespace().nth(1)?.parse().ok()?;
    Some(kib * 1024)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn proc_files() {
        assert_eq!(
            cpu("processor : 0\nmodel name\t: Zen 4\n").as_deref(),
            Some("Zen 4")
        );
        assert_eq!(
            cpu("CPU part\t: 0xd0c\n").as_deref(),
            Some("ARM part 0xd0c")
        );
        assert_eq!(cpu(""), None);
        assert_eq!(memory("MemTotal:       16 kB\n"), Some(16384));
        assert_eq!(memory("garbage"), None);
    }
}
