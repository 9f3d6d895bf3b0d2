//! The calls of the service. Each one calls the front.

use futures_util::stream::BoxStream;
use prost::Message;
use tonic::{Extensions, Request, Response, Status, Streaming};

use crate::blocking::{run_blocking_if, run_limited};
use crate::budget::Charge;
use crate::front::Front;
use crate::grpc::generated::health::health_check_response::ServingStatus;
use crate::grpc::generated::health::health_server::Health;
use crate::grpc::generated::health::{HealthCheckRequest, HealthCheckResponse};
use crate::grpc::generated::inference::grpc_inference_service_server::GrpcInferenceService;
use crate::grpc::generated::inference::{
    cuda_shared_memory_status_response as cuda, system_shared_memory_status_response as system, *,
};
use crate::grpc::{control, request, response, stream, tail};
use crate::idle::Activity;
use crate::refusal::Refusal;
use crate::request::{InferRequest, InferResponse};
use crate::shared_memory::GPU_CALLS;
use crate::shutdown::Shutdown;
use crate::spans::Parent;

/// Elements and string bytes of typed contents that are converted on the runtime's own thread.
const CONVERTED_INLINE: usize = 16 << 10;

/// The name of the service in the health protocol.
const SERVICE: &str = "inference.GRPCInferenceService";

/// The name of the method of one request.
const METHOD: &str = "inference.GRPCInferenceService/ModelInfer";

type CallResult<T> = Result<Response<T>, Status>;

/// The calls on one front.
#[derive(Debug, Clone)]
pub(super) struct Calls {
    pub(super) front: Front,
    /// The signal that ends streams. `None`: the application's own server ends them.
    pub(super) shutdown: Option<Shutdown>,
}

impl Calls {
    /// Returns whether all models take requests and the server goes on.
    fn is_ready(&self) -> bool {
        let ends = self.shutdown.as_ref().is_some_and(|shutdown| *shutdown.borrow());
        self.front.is_ready() && !ends
    }

    /// Returns the charge for the bytes of a call.
    pub(super) fn charge(&self, extensions: &Extensions) -> Charge {
        extensions.get().cloned().unwrap_or_else(|| self.front.charge())
    }

    /// Executes a request.
    pub(super) async fn infer(
        &self,
        message: ModelInferRequest,
        charge: Charge,
    ) -> Result<ModelInferResponse, Refusal> {
        // An unknown model is reported before any other fault of the request.
        if self.is_decoupled(&message)? {
            return Err(Refusal::decoupled("ModelInfer RPC"));
        }
        let request = decode(message).await?;
        let response = self.front.infer_charged(request, charge.clone()).await?;
        let response = self.encode(response)?;
        if !tail::has_tail(&response) {
            charge.add(response.encoded_len() as u64)?;
        }
        Ok(response)
    }

    /// Returns whether the model of a request is decoupled.
    pub(super) fn is_decoupled(&self, message: &ModelInferRequest) -> Result<bool, Refusal> {
        let (model, version) = (&message.model_name, &message.model_version);
        Ok(self.front.repository().find(model, Some(version))?.entry.is_decoupled())
    }

    /// Converts a response, and checks that it can be encoded.
    pub(super) fn encode(&self, response: InferResponse) -> Result<ModelInferResponse, Refusal> {
        let response = response::infer(response);
        let len = response.encoded_len();
        if len as u64 > self.front.limits().response_bytes {
            return Err(Refusal::response_too_long(self.front.limits().response_bytes));
        }
        if !tail::has_tail(&response) {
            // The encoder copies the response, and aborts if it gets no memory. This check comes first.
            Vec::<u8>::new().try_reserve_exact(len).map_err(|_| Refusal::no_memory(len))?;
        }
        Ok(response)
    }
}

/// Converts a request, on a blocking thread if that takes long.
pub(super) async fn decode(message: ModelInferRequest) -> Result<InferRequest, Refusal> {
    let is_long = request::conversion_len(&message) > CONVERTED_INLINE;
    run_blocking_if(is_long, move || request::decode(message)).await
}

fn non_empty(text: &str) -> Option<&str> {
    (!text.is_empty()).then_some(text)
}

#[tonic::async_trait]
impl GrpcInferenceService for Calls {
    async fn server_live(&self, _: Request<ServerLiveRequest>) -> CallResult<ServerLiveResponse> {
        Ok(Response::new(ServerLiveResponse { live: true }))
    }

    async fn server_ready(
        &self,
        _: Request<ServerReadyRequest>,
    ) -> CallResult<ServerReadyResponse> {
        Ok(Response::new(ServerReadyResponse { ready: self.is_ready() }))
    }

    async fn model_ready(
        &self,
        request: Request<ModelReadyRequest>,
    ) -> CallResult<ModelReadyResponse> {
        let ModelReadyRequest { name, version } = request.into_inner();
        let ready = self.front.is_model_ready(&name, non_empty(&version));
        Ok(Response::new(ModelReadyResponse { ready }))
    }

    async fn server_metadata(
        &self,
        _: Request<ServerMetadataRequest>,
    ) -> CallResult<ServerMetadataResponse> {
        let server = self.front.describe();
        let extensions = server.extensions.into_iter().map(str::to_owned).collect();
        let (name, version) = (server.name, server.version);
        Ok(Response::new(ServerMetadataResponse { name, version, extensions }))
    }

    async fn model_metadata(
        &self,
        request: Request<ModelMetadataRequest>,
    ) -> CallResult<ModelMetadataResponse> {
        let ModelMetadataRequest { name, version } = request.into_inner();
        let model = self.front.model_metadata(&name, non_empty(&version))?;
        Ok(Response::new(response::metadata(model)))
    }

    async fn model_infer(
        &self,
        request: Request<ModelInferRequest>,
    ) -> CallResult<ModelInferResponse> {
        let charge = self.charge(request.extensions());
        let connection: Option<Activity> = request.extensions().get().cloned();
        if let Some(connection) = &connection {
            connection.pause();
            connection.begin_call().await;
        }
        let span = Parent::of(request.metadata().as_ref()).grpc(METHOD);
        let answer = span.run(self.infer(request.into_inner(), charge)).await?;
        let has_tail = tail::has_tail(&answer);
        let mut response = Response::new(answer);
        if has_tail {
            response.disable_compression();
        }
        Ok(response)
    }

    type ModelStreamInferStream = BoxStream<'static, Result<ModelStreamInferResponse, Status>>;

    async fn model_stream_infer(
        &self,
        request: Request<Streaming<ModelInferRequest>>,
    ) -> CallResult<Self::ModelStreamInferStream> {
        Ok(Response::new(stream::answers(self.clone(), request)))
    }

    async fn model_config(
        &self,
        request: Request<ModelConfigRequest>,
    ) -> CallResult<ModelConfigResponse> {
        let ModelConfigRequest { name, version } = request.into_inner();
        let model = self.front.model_config(&name, non_empty(&version))?;
        Ok(Response::new(response::config(model)))
    }

    async fn model_statistics(
        &self,
        request: Request<ModelStatisticsRequest>,
    ) -> CallResult<ModelStatisticsResponse> {
        let ModelStatisticsRequest { name, version } = request.into_inner();
        let all = self.front.statistics(non_empty(&name), non_empty(&version))?;
        Ok(Response::new(response::statistics(all)))
    }

    async fn repository_index(
        &self,
        request: Request<RepositoryIndexRequest>,
    ) -> CallResult<RepositoryIndexResponse> {
        let RepositoryIndexRequest { repository_name, ready } = request.into_inner();
        if !repository_name.is_empty() {
            return Err(Refusal::repository_name().into());
        }
        let entries = self.front.index_of_repository(ready).await?;
        Ok(Response::new(response::index(entries)))
    }

    async fn repository_model_load(
        &self,
        request: Request<RepositoryModelLoadRequest>,
    ) -> CallResult<RepositoryModelLoadResponse> {
        let charge = self.charge(request.extensions());
        let RepositoryModelLoadRequest { repository_name, model_name, parameters } =
            request.into_inner();
        self.front.control().check(&repository_name)?;
        let parameters = control::load_parameters(parameters)?;
        self.front.load_charged(&model_name, parameters, charge).await?;
        Ok(Response::new(RepositoryModelLoadResponse {}))
    }

    async fn repository_model_unload(
        &self,
        request: Request<RepositoryModelUnloadRequest>,
    ) -> CallResult<RepositoryModelUnloadResponse> {
        let RepositoryModelUnloadRequest { repository_name, model_name, parameters } =
            request.into_inner();
        self.front.control().check(&repository_name)?;
        control::check_unload(&parameters)?;
        self.front.unload_model(&model_name).await?;
        Ok(Response::new(RepositoryModelUnloadResponse {}))
    }

    async fn system_shared_memory_status(
        &self,
        request: Request<SystemSharedMemoryStatusRequest>,
    ) -> CallResult<SystemSharedMemoryStatusResponse> {
        let all = self.front.shared_memory().system_status(&request.into_inner().name)?;
        let regions = all.into_iter().map(|region| {
            let name = region.name.clone();
            let status = system::RegionStatus {
                name: region.name,
                key: region.key,
                offset: region.offset,
                byte_size: region.byte_size,
            };
            (name, status)
        });
        Ok(Response::new(SystemSharedMemoryStatusResponse { regions: regions.collect() }))
    }

    async fn system_shared_memory_register(
        &self,
        request: Request<SystemSharedMemoryRegisterRequest>,
    ) -> CallResult<SystemSharedMemoryRegisterResponse> {
        let SystemSharedMemoryRegisterRequest { name, key, offset, byte_size } =
            request.into_inner();
        self.front.shared_memory().register_system(&name, &key, offset, byte_size)?;
        Ok(Response::new(SystemSharedMemoryRegisterResponse {}))
    }

    async fn system_shared_memory_unregister(
        &self,
        request: Request<SystemSharedMemoryUnregisterRequest>,
    ) -> CallResult<SystemSharedMemoryUnregisterResponse> {
        self.front.shared_memory().unregister_system(&request.into_inner().name)?;
        Ok(Response::new(SystemSharedMemoryUnregisterResponse {}))
    }

    async fn cuda_shared_memory_status(
        &self,
        request: Request<CudaSharedMemoryStatusRequest>,
    ) -> CallResult<CudaSharedMemoryStatusResponse> {
        let all = self.front.shared_memory().cuda_status(&request.into_inner().name)?;
        let regions = all.into_iter().map(|region| {
            let name = region.name.clone();
            let (device_id, byte_size) = (region.device_id, region.byte_size);
            (name, cuda::RegionStatus { name: region.name, device_id, byte_size })
        });
        Ok(Response::new(CudaSharedMemoryStatusResponse { regions: regions.collect() }))
    }

    async fn cuda_shared_memory_register(
        &self,
        request: Request<CudaSharedMemoryRegisterRequest>,
    ) -> CallResult<CudaSharedMemoryRegisterResponse> {
        let CudaSharedMemoryRegisterRequest { name, raw_handle, device_id, byte_size } =
            request.into_inner();
        let shared = self.front.shared_memory().clone();
        let register = move || shared.register_cuda(&name, &raw_handle, device_id, byte_size);
        run_limited(&GPU_CALLS, register).await?;
        Ok(Response::new(CudaSharedMemoryRegisterResponse {}))
    }

    async fn cuda_shared_memory_unregister(
        &self,
        request: Request<CudaSharedMemoryUnregisterRequest>,
    ) -> CallResult<CudaSharedMemoryUnregisterResponse> {
        let shared = self.front.shared_memory().clone();
        let unregister = move || shared.unregister_cuda(&request.into_inner().name);
        run_limited(&GPU_CALLS, unregister).await?;
        Ok(Response::new(CudaSharedMemoryUnregisterResponse {}))
    }
}

#[tonic::async_trait]
impl Health for Calls {
    async fn check(&self, request: Request<HealthCheckRequest>) -> CallResult<HealthCheckResponse> {
        let service = request.into_inner().service;
        if !service.is_empty() && service != SERVICE {
            return Err(Status::not_found("unknown service"));
        }
        let is = if self.is_ready() { ServingStatus::Serving } else { ServingStatus::NotServing };
        Ok(Response::new(HealthCheckResponse { status: is.into() }))
    }
}
