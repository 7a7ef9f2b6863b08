//! Building the graph.

mod adjacency;
mod entry;
mod greedy;
mod order;
mod points;
mod prune;
mod random;
mod reach;
mod vamana;

pub use adjacency::Graph;
pub use entry::medoid;
pub use order::locality_order;
pub use points::Points;
pub use vamana::build;

/// What the build aims at. The names are those that users of DiskANN know.
#[derive(Clone, Debug, PartialEq)]
pub struct Parameters {
    /// R: at most so many neighbours a node.
    pub degree: usize,
    /// L: length of the candidate list while a node searches for its neighbours.
    pub build_list: usize,
    /// Margin of the prune on squared distances, at least 1; larger keeps more long edges.
    pub alpha: f32,
    /// Worker threads.
    pub threads: usize,
    /// With one thread, the same seed gives the same graph.
    pub seed: u64,
}

impl Default for Parameters {
    fn default() -> Parameters {
        Parameters { degree: 64, build_list: 100, alpha: 1.2, threads: 1, seed: 0 }
    }
}

/// The build was stopped by the caller's [`Progress::interrupted`](crate::progress::Progress::interrupted).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Interrupted;
use crate::data::*; use crate::Order; use crate::progress::Progress; use stratann_vector::{Metric,Element};
#[derive(Debug, thiserror::Error)] pub enum GraphError{#[error("interrupted")] Interrupted,#[error(transparent)] Data(#[from] DataError)}
pub const SCRATCH_PREFIX:&str="scratch-";
pub struct Constructed{pub medoid:u32,pub edges:u64,pub degree_max:usize,pub parts:usize,order:Vec<u32>,bytes:Vec<u8>,graph:Graph,at:u32}
impl Constructed{pub fn vectors(&self,_s:&dyn VectorSource,f:usize,o:&mut [u8])->Result<(),GraphError>{let rb=self.bytes.len()/self.order.len();o.copy_from_slice(&self.bytes[f*rb..f*rb+o.len()]);Ok(())}
pub fn gather(&self,_s:&dyn VectorSource,n:&[u32],o:&mut [u8])->Result<(),GraphError>{let rb=self.bytes.len()/self.order.len();for(i,&n) in n.iter().enumerate(){o[i*rb..i*rb+rb].copy_from_slice(&self.bytes[n as usize*rb..][..rb])};Ok(())} pub fn row(&self,n:usize)->usize{self.order[n] as usize} pub fn next_list(&mut self,o:&mut Vec<u32>)->Result<(),GraphError>{o.clear();o.extend_from_slice(self.graph.neighbours(self.at));self.at+=1;Ok(())}}
fn space(bytes:&[u8],e:Element,d:usize,m:Metric)->(Vec<u8>,Element,usize){ if m==Metric::L2{return (bytes.to_vec(),e,d)} let mut f=vec![0.0;bytes.len()/e.size()];stratann_vector::to_f32(e,bytes,&mut f);if m==Metric::Cosine{for r in f.chunks_exact_mut(d){stratann_vector::normalize(r);} (f.iter().flat_map(|v|v.to_le_bytes()).collect(),Element::F32,d)} else {let mx=f.chunks_exact(d).map(|r|stratann_vector::norm(r)).fold(0.0,f32::max);let mut g=vec![];for r in f.chunks_exact(d){g.extend_from_slice(r);let n=stratann_vector::norm(r);g.push((mx*mx-n*n).max(0.0).sqrt());}(g.iter().flat_map(|v|v.to_le_bytes()).collect(),Element::F32,d+1)}}
#[allow(clippy::too_many_arguments)]
pub fn construct(s:&dyn VectorSource,m:Metric,o:Order,p:usize,q:&Parameters,_mem:Option<u64>,_sc:&std::path::Path,pr:&dyn Progress)->Result<Constructed,GraphError>{
 let mut bytes=vec![0u8;s.rows()*s.dim()*s.element().size()]; s.read(0,&mut bytes)?; check_rows(s,m,0,&bytes)?; let rb=s.dim()*s.element().size();
 let order:Vec<u32>=if o==Order::Locality{let (b,e,d)=space(&bytes,s.element(),s.dim(),m);locality_order(&Points::new(&b,e,d),p,q.threads,q.seed)}else{(0..s.rows() as u32).collect()};
 let mut out=vec![0u8;bytes.len()];for(i,&r)in order.iter().enumerate(){out[i*rb..i*rb+rb].copy_from_slice(&bytes[r as usize*rb..][..rb])} drop(bytes);
 let r=over_sample(&out,s.element(),s.dim(),m,q,pr)?;
 Ok(Constructed{medoid:r.medoid,edges:r.graph.edges(),degree_max:r.graph.degree_max(),parts:1,order,bytes:out,graph:r.graph,at:0})}
pub struct Over{pub graph:Graph,pub medoid:u32}
pub fn over_sample(v:&[u8],e:Element,d:usize,m:Metric,p:&Parameters,pr:&dyn Progress)->Result<Over,GraphError>{let (b,e,d)=space(v,e,d,m);let pts=Points::new(&b,e,d);let md=medoid(&pts,p.threads,p.seed);Ok(Over{graph:build(&pts,md,p,pr).map_err(|_|GraphError::Interrupted)?,medoid:md})}
