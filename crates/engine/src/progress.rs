//! stub
/// progress
pub trait Progress: Sync {
    /// begin
    fn begin(&self, stage: &str, total: u64);
    /// advance
    fn advance(&self, n: u64);
    /// end
    fn end(&self);
    /// interrupted
    fn interrupted(&self) -> bool;
    /// warn
    fn warn(&self, message: &str);
}
/// silent
pub struct Silent;
impl Progress for Silent {
    fn begin(&self, _: &str, _: u64) {}
    fn advance(&self, _: u64) {}
    fn end(&self) {}
    fn interrupted(&self) -> bool {
        false
    }
    fn warn(&self, _: &str) {}
}
