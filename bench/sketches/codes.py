"""Ranking by codes of equal length: PQ, PQ after a rotation (PCA, OPQ), and RaBitQ.

A sketch behind a choice, in numpy: `python3 codes.py package-text 96,48 [FOLDER OF DATA SETS]`. For
200 queries it prints the share of the ten nearest among the first 10, 15, 20, 40 and 100 by code.
"""
import numpy as np, sys, time
rng=np.random.default_rng(1)
def load(p):
    with open(p,'rb') as f:
        n,d=np.fromfile(f,'<u4',2); return np.fromfile(f,'<f4',n*d).reshape(n,d)
name=sys.argv[1]; D=(sys.argv[3] if len(sys.argv)>3 else '../../../shared/data')+'/'
X=load(D+name+'.base.fbin'); Q=load(D+name+'.query.fbin')[:200]
X/=np.linalg.norm(X,axis=1,keepdims=True); Q/=np.linalg.norm(Q,axis=1,keepdims=True)
n,d=X.shape
S=X[rng.permutation(n)[:min(n,10000)]]
true=np.argsort(-(Q@X.T),axis=1)[:,:10]
def kmeans(P,k=256,it=8):
    C=P[rng.permutation(len(P))[:k]].copy()
    for _ in range(it):
        a=np.argmin((C*C).sum(1)-2*P@C.T,axis=1)
        cnt=np.bincount(a,minlength=k); 
        for j in range(P.shape[1]):
            s=np.bincount(a,weights=P[:,j],minlength=k); C[:,j]=np.where(cnt>0,s/np.maximum(cnt,1),C[:,j])
    return C
def chunks(d,m): return np.array_split(np.arange(d),m)
def train(P,m,it=8): return [kmeans(P[:,c],it=it) for c in chunks(P.shape[1],m)]
def enc(P,B,m): return np.stack([np.argmin((C*C).sum(1)-2*P[:,c]@C.T,axis=1) for C,c in zip(B,chunks(P.shape[1],m))],1)
def dec(A,B): return np.concatenate([C[A[:,i]] for i,C in enumerate(B)],1)
def show(tag,Y,R=None):
    q=Q if R is None else Q@R
    e=((q*q).sum(1)[:,None]+(Y*Y).sum(1)-2*q@Y.T)
    o=np.argsort(e,axis=1)[:,:100]
    r=[np.mean([len(set(o[i,:T])&set(true[i])) for i in range(len(Q))])/10 for T in (10,15,20,40,100)]
    print(name,tag,'recall10 in top 10,15,20,40,100:',' '.join('%.3f'%x for x in r),flush=True)
def mse(a,b): return float(((a-b)**2).sum(1).mean())
for m in [int(x) for x in sys.argv[2].split(',')]:
    t=time.time(); B=train(S,m); A=enc(X,B,m); Y=dec(A,B); show('PQ%d mse %.4f'%(m,mse(X,Y)),Y)
    # PCA + greedy allocation
    mu=S.mean(0); w,V=np.linalg.eigh(np.cov((S-mu).T)); o=np.argsort(-w); w=w[o];V=V[:,o]
    cap=[len(c) for c in chunks(d,m)]; bucket=[[] for _ in range(m)]; prod=np.zeros(m)
    for i in range(d):
        j=min((j for j in range(m) if len(bucket[j])<cap[j]),key=lambda j:(prod[j],j)); bucket[j].append(i); prod[j]+=np.log(max(w[i],1e-12))
    R=V[:,np.concatenate(bucket).astype(int)]
    B=train(S@R,m); A=enc(X@R,B,m); Y=dec(A,B); show('PCA-alloc%d mse %.4f'%(m,mse(X@R,Y)),Y,R)
    R0=R
    for name0,R in (('opq-from-pca',R0),('opq-from-I',np.eye(d,dtype='f4'))):
        B=train(S@R,m,4)
        for it in range(8):
            P=S@R
            # one Lloyd step
            A=enc(P,B,m)
            for i,(C,c) in enumerate(zip(B,chunks(d,m))):
                cnt=np.bincount(A[:,i],minlength=256)
                for jj,j in enumerate(c):
                    s=np.bincount(A[:,i],weights=P[:,j],minlength=256); C[:,jj]=np.where(cnt>0,s/np.maximum(cnt,1),C[:,jj])
            Yd=dec(A,B); U,_,Vt=np.linalg.svd(S.T@Yd); R=(U@Vt).astype('f4')
        B=train(S@R,m); A=enc(X@R,B,m); Y=dec(A,B); show('%s%d mse %.4f'%(name0,m,mse(X@R,Y)),Y,R)
    print('took',time.time()-t,flush=True)
# scalar: 2 bits a dimension after random rotation, best of (extended RaBitQ-like, per-vector scale)
Rr=np.linalg.qr(rng.standard_normal((d,d)))[0].astype('f4')
mu=X.mean(0)
Z=(X-mu)@Rr; nz=np.linalg.norm(Z,axis=1,keepdims=True); Zu=Z/nz*np.sqrt(d)
for bits in (1,2,3):
    L=2**bits
    best=None
    for step in np.linspace(0.3,2.2,20):
        q=np.clip(np.floor(Zu/step),-L//2,L//2-1)+.5; g=q*step
        c=(g*Zu).sum(1)/np.linalg.norm(g,axis=1)/np.sqrt(d)
        if best is None or c.mean()>best[0]: best=(c.mean(),step)
    q=(np.clip(np.floor(Zu/best[1]),-L//2,L//2-1)+.5)
    # unbiased estimator: <z,q> ~ nz * <g,qr>/<g,zu>
    scale=nz[:,0]*np.sqrt(d)*1.0/((q*Zu).sum(1))*1.0
    ip=((Q-mu)@Rr)@q.T*scale
    e=(nz[:,0]**2)-2*ip
    o=np.argsort(e,axis=1)[:,:100]
    r=[np.mean([len(set(o[i,:T])&set(true[i])) for i in range(len(Q))])/10 for T in (10,15,20,40,100)]
    print(name,'rabitq bits',bits,'bytes',d*bits//8+8,' '.join('%.3f'%x for x in r),flush=True)
