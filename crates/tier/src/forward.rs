//! A macro that delegates methods of a wrapping volume to the wrapped volume.

/// In an `impl Volume for X`: delegates the named methods to the volume in the named field.
macro_rules! leave_to {
    ($field:ident: $($method:ident)*) => { $(leave_to!(@ $field $method);)* };
    (@ $field:ident name) => { fn name(&self) -> String { self.$field.name() } };
    (@ $field:ident place) => { fn place(&self, name: &str) -> String { self.$field.place(name) } };
    (@ $field:ident create) => {
        fn create(&self, name: &str) -> Result<Box<dyn VolumeFile>, TierError> { self.$field.create(name) }
    };
    (@ $field:ident open) => {
        fn open(&self, name: &str) -> Result<Box<dyn VolumeFile>, TierError> { self.$field.open(name) }
    };
    (@ $field:ident open_pages) => {
        fn open_pages(&self, name: &str) -> Result<Box<dyn VolumeFile>, TierError> { self.$field.open_pages(name) }
    };
    (@ $field:ident read) => { fn read(&self, name: &str) -> Result<Vec<u8>, TierError> { self.$field.read(name) } };
    (@ $field:ident read_at) => {
        fn read_at(&self, name: &str, offset: u64, out: &mut [u8]) -> Result<(), TierError> {
            self.$field.read_at(name, offset, out)
        }
    };
    (@ $field:ident open_reader) => {
        fn open_reader(&self, name: &str) -> Result<Box<dyn VolumeReader>, TierError> { self.$field.open_reader(name) }
    };
    (@ $field:ident len) => { fn len(&self, name: &str) -> Result<u64, TierError> { self.$field.len(name) } };
    (@ $field:ident exists) => { fn exists(&self, name: &str) -> Result<bool, TierError> { self.$field.exists(name) } };
    (@ $field:ident rename) => {
        fn rename(&self, from: &str, to: &str) -> Result<(), TierError> { self.$field.rename(from, to) }
    };
    (@ $field:ident remove) => { fn remove(&self, name: &str) -> Result<(), TierError> { self.$field.remove(name) } };
    (@ $field:ident list) => { fn list(&self) -> Result<Vec<String>, TierError> { self.$field.list() } };
    (@ $field:ident sync) => { fn sync(&self) -> Result<(), TierError> { self.$field.sync() } };
    (@ $field:ident keep_room) => {
        fn keep_room(&self, name: &str, bytes: u64) -> Result<bool, TierError> { self.$field.keep_room(name, bytes) }
        fn kept_room(&self, name: &str) -> Result<u64, TierError> { self.$field.kept_room(name) }
    };
    (@ $field:ident lock) => {
        fn lock(&self) -> Result<LockGuard, TierError> { self.$field.lock() }
        fn held_as(&self, what: &str, remedy: &str) { self.$field.held_as(what, remedy) }
        fn check_held(&self) -> Result<(), TierError> { self.$field.check_held() }
        fn check_path(&self, path: &std::path::Path) -> Result<(), TierError> { self.$field.check_path(path) }
        fn identity(&self) -> Option<(u64, u64)> { self.$field.identity() }
        fn note(&self) -> Option<std::sync::Arc<Note>> { self.$field.note() }
    };
}

pub(crate) use leave_to;
