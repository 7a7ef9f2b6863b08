//! Pages that are kept in memory. They are read and verified once, when the index is opened.

use stratann_tier::{HugeBytes, Volume};

use crate::Error;

const AWAY: u32 = u32::MAX;
const PIECE: usize = 1 << 20;

#[derive(Debug, Default)]
pub(crate) struct Resident {
    /// For each page, its position in `bytes`, counted in pages, or [`AWAY`]. Empty if no page is
    /// resident, or if all pages are.
    places: Vec<u32>,
    bytes: Option<HugeBytes>,
    page_bytes: usize,
}

pub(crate) type Check<'a> = dyn Fn(u64, &[u8]) -> Result<(), Error> + 'a;

pub(crate) struct Source<'a> {
    pub(crate) volume: &'a dyn Volume,
    pub(crate) name: &'a str,
    pub(crate) pages: u64,
    pub(crate) page_bytes: usize,
    pub(crate) start: u64,
}

impl Resident {
    /// Loads the pages for which `wanted` returns true. `wanted` is called in page order.
    pub(crate) fn load(
        source: &Source<'_>,
        wanted: &mut dyn FnMut(u64) -> bool,
        check: &Check<'_>,
    ) -> Result<Self, Error> {
        let (pages, page_bytes) = (source.pages as usize, source.page_bytes);
        let mut places = vec![AWAY; pages];
        let mut count = 0;
        for (page, place) in places.iter_mut().enumerate() {
            if wanted(page as u64) {
                *place = count;
                count += 1;
            }
        }
        if count == 0 {
            return Ok(Self::default());
        }
        let mut bytes = HugeBytes::zeroed(count as usize * page_bytes)?;
        let most = (PIECE / page_bytes).max(1);
        let mut page = 0;
        while page < pages {
            if places[page] == AWAY {
                page += 1;
                continue;
            }
            // Consecutive pages of the file are also consecutive in memory. So one read loads
            // several pages.
            let run = places[page..]
                .iter()
                .take(most)
                .take_while(|&&place| place != AWAY)
                .count();
            let at = places[page] as usize * page_bytes;
            let target = &mut bytes[at..at + run * page_bytes];
            let offset = source.start + (page * page_bytes) as u64;
            source.volume.read_at(source.name, offset, target)?;
            for (i, read) in target.chunks_exact(page_bytes).enumerate() {
                check((page + i) as u64, read)?;
            }
            page += run;
        }
        if count as usize == pages {
            return Ok(Self::whole(bytes, page_bytes));
        }
        Ok(Self {
            places,
            bytes: Some(bytes),
            page_bytes,
        })
    }

    /// All pages of the file are in memory, in order.
    pub(crate) fn whole(bytes: HugeBytes, page_bytes: usize) -> Self {
        Self {
            places: Vec::new(),
            bytes: Some(bytes),
            page_bytes,
        }
    }

    #[inline]
    pub(crate) fn get(&self, page: u64) -> Option<&[u8]> {
        let place = match self.places.is_empty() {
            true => page as usize,
            false => *self.places.get(page as usize)? as usize,
        };
        let at = place.checked_mul(self.page_bytes)?;
        self.bytes.as_ref()?.get(at..at + self.page_bytes)
    }

    #[inline]
    pub(crate) fn run(&self, page: u64, pages: u32) -> Option<&[u8]> {
        if pages == 1 {
            return self.get(page);
        }
        let first = match self.places.is_empty() {
            true => page as usize,
            false => {
                let places = self.places.get(page as usize..)?.get(..pages as usize)?;
                if places.contains(&AWAY) {
                    return None;
                }
                // Consecutive pages are next to each other in memory.
                *places.first()? as usize
            }
        };
        let at = first.checked_mul(self.page_bytes)?;
        let bytes = self.bytes.as_ref()?;
        bytes.get(at..at.checked_add(pages as usize * self.page_bytes)?)
    }
}
